# SPDX-License-Identifier: Apache-2.0
"""What a run finds: environment (X14), working directory (X15), new random numbers after a fork (V05), no trace of a warm-up."""
import os
import shutil
import subprocess
import tempfile

import rig

DRAWS = """
import random, tempfile, uuid, numpy, ssl, secrets
[random.random(), numpy.random.rand(), next(tempfile._get_candidate_names()), str(uuid.uuid1()), str(uuid.uuid4()),
 ssl.RAND_bytes(8).hex(), secrets.token_hex(4), random.choice(range(10**9)), list(numpy.random.permutation(50))]
"""


class Surroundings(rig.Case):
    MODULES = ["IPython", "pandas", "matplotlib"]

    def test_V05_new_numbers_after_a_fork(self):
        """A fork is two machines in one state: here, one process put back into the state that it had."""
        self.context.set_generation("one")
        self.good("import random, numpy\ndef put_back():\n    random.seed(1); numpy.random.seed(1)\nput_back()")
        same = [self.value("put_back()\n" + "random.random(), numpy.random.rand()") for _ in range(2)]
        self.assertEqual(same[0], same[1])
        seen = []
        for generation in ("two", "three", "four"):
            self.good("put_back()")
            self.context.set_generation(generation)
            seen.append(eval(self.value("import random, numpy\n[random.random(), numpy.random.rand()]")))
        self.assertEqual(len({repr(each) for pair in seen for each in pair}), 6)
        self.good("put_back()")    # without another fork nothing is seeded behind the code's back
        self.assertEqual(self.value("random.random(), numpy.random.rand()"), same[0])

    def test_V05_twins(self):
        """Two children of one process, stopped at one point: with a new generation each, nothing that they draw is alike."""
        source = ("import os, sys\nsys.path.insert(0, sys.argv[1])\nimport random, numpy.random, tempfile, uuid, ssl\n"
                  "import reseed\nrandom.random(); next(tempfile._get_candidate_names()); uuid.uuid1(); ssl.RAND_bytes(8)\n"
                  "for i in range(2):\n    if os.fork() == 0:\n"
                  "        assert reseed.everything() == [], reseed.everything()\n"
                  "        print(random.random(), numpy.random.rand(), next(tempfile._get_candidate_names()), uuid.uuid1().node,\n"
                  "              ssl.RAND_bytes(8).hex(), flush=True)\n        os._exit(0)\n    os.wait()\n")
        python = rig.PYTHONS[tuple(self.MODULES)]
        lines = subprocess.run([python, "-c", source, rig.DRIVER], check=True, capture_output=True, text=True).stdout.splitlines()
        first, second = (line.split() for line in lines)
        self.assertEqual(len(first), 5)
        self.assertFalse(set(first) & set(second))

    def test_V05_everything_draws(self):
        self.good(DRAWS)
        self.context.set_generation("five")
        first = self.value(DRAWS)
        self.context.set_generation("six")
        self.assertNotEqual(first, self.value(DRAWS))

    def test_V05_a_broken_generator_is_told_and_the_cell_runs(self):
        self.good("import numpy\nhidden, numpy.random.seed = numpy.random.seed, None")
        self.context.set_generation("seven")
        execution = self.good("numpy.random.seed = hidden\n'ran'")
        self.assertEqual(execution.text, "'ran'")
        self.assertIn("not reseeded after the fork: numpy.random", execution.stderr)

    def test_X15_working_directory_is_gone(self):
        self.good("import os, tempfile\nhome = os.getcwd()\nd = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)")
        self.assertEqual(self.value("1 + 1"), "2")
        self.bad("os.getcwd()", "FileNotFoundError")
        self.good("!pwd")
        self.bad("1 / 0", "ZeroDivisionError")
        self.good("%cd /")
        self.assertEqual(self.value("os.getcwd()"), "'/'")
        self.good("d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)")
        self.good("os.chdir(home)")

    def test_cd_stays(self):
        self.good("home = %pwd")
        self.good("%cd /usr")
        self.assertEqual(self.good("!pwd").stdout, "/usr\n")
        self.good("%cd {home}")

    def test_commands(self):
        execution = self.good("word = 'x y'\n!printf '%s|' \"{word}\" '$x' 1>&2; exit 4")
        self.assertEqual(execution.stderr, "x y|$x|")
        self.assertEqual(self.value("_exit_code"), "4")
        self.assertEqual(self.good("!echo $HOME").stdout, self.context.folder + "/home\n")
        self.assertEqual(self.value("lines = !echo a; echo b >&2; echo c\nlist(lines)"), "['a', 'b', 'c']")
        self.assertEqual(self.good("%%bash\nx=5\necho $((x * 2))").stdout, "10\n")
        self.assertIn("pip", self.good("%pip --version").stdout)

    def test_streams_that_code_closed_or_replaced(self):
        self.good("import os, sys, io\nsys.stdout.close()")
        self.assertEqual(self.good("print('again')").stdout, "again\n")
        self.good("os.close(1); os.close(2)")
        self.assertEqual(self.good("print('again')\n!echo out; echo err >&2").stdout, "again\nout\n")
        self.good("os.dup2(os.open('/dev/null', os.O_WRONLY), 1);")
        self.assertEqual(self.good("print('again')").stdout, "again\n")

    def test_imports(self):
        self.good("open('mine.py', 'w').write('x = 3');")
        self.assertEqual(self.value("import mine; mine.x"), "3")
        self.bad("import shell", "ModuleNotFoundError")    # none of ours
        self.good("import os, site; os.makedirs(site.getusersitepackages())\n"
                  "open(site.getusersitepackages() + '/installed_now.py', 'w').write('y = 4');")
        self.assertEqual(self.value("import installed_now; installed_now.y"), "4")
        self.good("import pickle\nclass Thing: pass\npickle.loads(pickle.dumps(Thing()));")

    def test_warm_up_leaves_no_trace(self):
        names = "sorted(each for each in globals() if not each.startswith('_i'))"
        self.good("x = 1")
        before = eval(self.value(names))
        count = self.good("len(_)").done["execution_count"]
        self.assertIsNone(self.context.run("", op="warm").error)
        after = self.good(names)
        self.assertEqual(set(eval(after.text)) - set(before) - {f"_{count - 1}", f"_{count}"}, set())
        self.assertEqual(self.value(f"_{count}"), str(len(before)))
        self.assertEqual(after.done["execution_count"], count + 1)
        self.assertEqual(self.value("import sys; 'pandas' in sys.modules, 'matplotlib.pyplot' in sys.modules"), "(True, True)")
        self.assertEqual(self.good("1").results[0]["data"], {"text/plain": "1"})

    def test_warm_up_of_a_new_context(self):
        context = rig.Context(rig.PYTHONS[tuple(self.MODULES)])
        try:
            warm = context.run("", op="warm")
            self.assertEqual((warm.stdout, warm.stderr, warm.results, warm.error), ("", "", [], None))
            self.assertEqual(context.run("In, Out, _, __name__").text, "(['', 'In, Out, _, __name__'], {}, '', '__main__')")
            self.assertEqual(context.run("2").done["execution_count"], 2)
        finally:
            context.close()


class Environment(rig.unittest.TestCase):
    def test_X14_environment(self):
        values = {"NEWLINE": "a\nb", "EQUALS": "a=b=", "QUOTES": "'\"`", "BLANKS": "  x ", "DOLLAR": "$HOME ${HOME}", "EMPTY": "",
                  "BACKSLASH": "\\n\\", "EMOJI": "😀", "LARGE": "l" * 100_000, "WITH.DOT": "dot"}
        context = rig.Context(rig.PYTHONS[("IPython", "pandas", "matplotlib")], env=values)
        try:
            for name, value in values.items():
                self.assertEqual(context.run(f"import os; os.environ[{name!r}] == {value!r}").text, "True", name)
            context.run("import os; os.environ['SET'] = 'in code'")
            self.assertEqual(context.run("!echo $SET").stdout, "in code\n")
            with open(f"/proc/{context.process.pid}/cmdline", "rb") as file:
                self.assertNotIn(b"dot", file.read())
        finally:
            context.close()

    def test_cwd(self):
        context = rig.Context(rig.PYTHONS[("IPython", "pandas", "matplotlib")], "--cwd", "/usr/lib")
        try:
            self.assertEqual(context.run("import os; os.getcwd()").text, "'/usr/lib'")
        finally:
            context.close()

    def test_without_ipython(self):
        """Said in words, and tried again with the next run."""
        python = rig.PYTHONS[("IPython", "pandas", "matplotlib")]
        folder = tempfile.mkdtemp(prefix="ramet-context-", dir="/tmp")
        self.addCleanup(shutil.rmtree, folder)
        with open(folder + "/python", "w") as file:
            file.write(f'#!/bin/sh\nexec {python} -S "$@"\n')    # -S: nothing that packages have installed
        os.chmod(folder + "/python", 0o755)
        context = rig.Context(python, "--python", folder + "/python")
        try:
            execution = context.run("1")
            self.assertEqual(execution.error["name"], "ContextUnavailable")
            self.assertIn("IPython", execution.error["value"])
            self.assertEqual(context.ask("status")["state"], "unavailable")
            self.assertEqual(context.run("1").error["name"], "ContextUnavailable")
        finally:
            context.close()

    def test_a_program_that_cannot_be_started(self):
        """Each run tries again and says so; no try leaves a descriptor behind."""
        context = rig.Context(rig.PYTHONS[("IPython", "pandas", "matplotlib")], "--python", "/nothing/python")
        try:
            counts = []
            for _ in range(3):
                self.assertIn("/nothing/python", context.run("1").error["value"])
                counts.append(len(os.listdir(f"/proc/{context.process.pid}/fd")))
            self.assertEqual(len(set(counts)), 1, counts)
        finally:
            context.close()


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    rig.main(["IPython", "pandas", "matplotlib"])
