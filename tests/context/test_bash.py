# SPDX-License-Identifier: Apache-2.0
"""Contexts of bash: what is set stays, output comes as it is written, and runs end as Python's do."""
import rig


class Bash(rig.Case):
    MODULES = ["json"]
    OPTIONS = ("--language", "bash", "--grace", "1")

    def status(self, code, **more):
        return self.good(code, **more).done["exit_code"]

    def test_state_stays(self):
        self.good("x=5; cd /usr; f() { echo \"f $1\"; }; export Y='a b'; shopt -s extglob")
        execution = self.good("f $((x + 1)); pwd; printenv Y")
        self.assertEqual((execution.stdout, execution.stderr), ("f 6\n/usr\na b\n", ""))
        self.assertEqual(self.status("(exit 3)"), 3)
        self.assertEqual(self.status("true"), 0)
        self.assertEqual(self.status(""), 0)

    def test_text_passes_as_it_is(self):
        self.assertEqual(self.good("cat << 'END'\n$x 'y' \"z\" \\n !! `a`\nEND\necho 'quo'\"'\"'ted' # end").stdout,
                         "$x 'y' \"z\" \\n !! `a`\nquo'ted\n")
        self.assertEqual(self.good("for i in 1 2\ndo\n  echo $i\ndone").stdout, "1\n2\n")
        broken = self.good("if then")
        self.assertNotEqual(broken.done["exit_code"], 0)
        self.assertIn("syntax error", broken.stderr)
        self.assertEqual(self.good("echo on").stdout, "on\n")
        self.context.connection.send(op="run", run="1", code="a\0b")
        self.assertEqual(self.context.connection.event()["code"], "invalid")

    def test_X06_input_is_empty(self):
        self.assertEqual(self.status("read x"), 1)
        self.assertEqual(self.good("cat").stdout, "")

    def test_X01_flood(self):
        execution = self.good("yes | head -c 300000000 & yes | head -c 300000000 >&2; wait; (exit 3)")
        self.assertEqual((len(execution.stdout), len(execution.stderr), execution.done["exit_code"]), (4 << 20, 4 << 20, 3))
        self.assertTrue(execution.done["truncated"])

    def test_X05_what_will_not_stop_is_ended(self):
        self.good("kept=1")
        for secs in 0.3, 1.5, 7.5, 30:    # a slow machine may not have come to the trap
            execution = self.run_code("trap '' INT; sleep 60; sleep 60", timeout=secs)
            if execution.done["state_lost"]:
                break
        self.assertEqual(execution.error["name"], "TimeoutError")
        self.assertIn("was over", execution.done["state_lost"])
        execution = self.good("echo \"<$kept>\"")
        self.assertEqual(execution.stdout, "<>\n")
        self.assertIn("began with nothing", execution.done["state_lost"])

    def test_X08_leaving(self):
        execution = self.bad("exit 7", "ContextDied")
        self.assertEqual(execution.done["exit_code"], 7)
        self.assertIn("status 7", execution.done["state_lost"])
        self.assertEqual(self.bad("kill -9 $$", "ContextDied").done["signal"], 9)
        self.assertEqual(self.good("echo new").stdout, "new\n")

    def test_background_processes_stay(self):
        self.good("sleep 300 & echo $! > pid")
        self.assertEqual(self.status("kill $(cat pid)"), 0)

    def test_V05_random(self):
        seen = set()
        for generation in ("a", "b", "c"):
            self.good("RANDOM=1")
            self.context.set_generation(generation)
            seen.add(self.good("echo $RANDOM $RANDOM").stdout)
        self.assertEqual(len(seen), 3)

    def test_restart(self):
        self.good("kept=1")
        self.assertTrue(self.context.ask("restart")["restarted"])
        self.assertEqual(self.good("echo \"<$kept>\"").stdout, "<>\n")


class KeptBash(rig.Case):
    """The time until a process is killed is one that a slow machine does not need."""
    MODULES = ["json"]
    OPTIONS = ("--language", "bash", "--grace", "60")

    def test_X05_timeout_and_interrupt_keep_the_state(self):
        self.good("kept=1")
        for code in ("sleep 600; echo went on", "while :; do :; done", "for i in 1 2 3; do sleep 600; done; echo went on",
                     "(sleep 600); echo went on"):
            execution = self.run_code(code, timeout=0.3)
            self.assertTrue(execution.done["timed_out"], code)
            self.assertIsNone(execution.done["state_lost"], code)
            self.assertNotIn("went on", execution.stdout)
            self.assertEqual(self.good("echo $kept").stdout, "1\n")
        begun, result = self.in_background("echo begun; sleep 600")
        self.assertTrue(begun.wait(rig.HANG_SECS))
        self.context.ask("interrupt")
        self.assertTrue(result().done["interrupted"])
        self.assertEqual(self.good("echo $kept").stdout, "1\n")


if __name__ == "__main__":
    rig.main(["json"])
