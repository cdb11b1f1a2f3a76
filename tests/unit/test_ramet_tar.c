// SPDX-License-Identifier: Apache-2.0
// Trees through tar streams: everything comes back, and an archive that a guest made up gets nowhere.
#include "tools/ramet/interrupt.c"
#include "tools/ramet/output.c"
#include "tools/ramet/staging.c"
#include "tools/ramet/table.c"
#include "tools/ramet/tar_header.c"
#include "tools/ramet/tar_pack.c"
#include "tools/ramet/tar_unpack.c"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct stream {
    char *bytes;
    size_t size;
};

static char root[] = "/tmp/ramet-tar-XXXXXX";

static int collect(void *context, const void *bytes, size_t size, struct error *err)
{
    struct stream *stream = context;
    stream->bytes = realloc(stream->bytes, stream->size + size);
    assert_non_null(stream->bytes);
    memcpy(stream->bytes + stream->size, bytes, size);
    stream->size += size;
    return 0;
}

static void add(struct stream *stream, const char *name, char type, const char *content, const char *link)
{
    static const char zeros[TAR_HEADER_BLOCK];
    struct tar_header header;
    size_t size = strlen(content);
    tar_header_make(&header, name, type, 04755, size, 0, link);
    collect(stream, &header, sizeof header, NULL);
    collect(stream, content, size, NULL);
    collect(stream, zeros, (TAR_HEADER_BLOCK - size % TAR_HEADER_BLOCK) % TAR_HEADER_BLOCK, NULL);
}

static void end(struct stream *stream)
{
    static const char zeros[2 * TAR_HEADER_BLOCK];
    collect(stream, zeros, sizeof zeros, NULL);
}

static char *path_of(const char *name)
{
    static char paths[4][512];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static char *new_folder(void)
{
    static unsigned count;
    char name[20];
    snprintf(name, sizeof name, "out%u", count++);
    char *path = path_of(name);
    assert_int_equal(mkdir(path, 0700), 0);
    return path;
}

// In pieces of `piece` bytes.
static int unpack(const char *folder, const struct stream *stream, size_t piece, struct tar_totals *totals,
        struct error *err)
{
    struct tar_unpack *into = NULL;
    int r = 0;
    assert_int_equal(tar_unpack_new(folder, &into, err), 0);
    for (size_t done = 0; r == 0 && done < stream->size; done += piece)
        r = tar_unpack_feed(
                into, stream->bytes + done, stream->size - done < piece ? stream->size - done : piece, err);
    if (r == 0)
        return tar_unpack_end(into, totals, err);
    tar_unpack_free(into);
    return r;
}

static void run(const char *format, ...)
{
    char line[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    assert_int_equal(system(line), 0);
}

static void everything_comes_back(void **state)
{
    struct stream stream = {0};
    struct tar_totals measured, packed, unpacked;
    struct error err = {0};
    run("mkdir -p %s/in/deep/er '%s/in/a b' && cd %s/in && head -c 100000 /dev/urandom > big && : > empty && "
        "chmod 640 big && "
        "chmod 751 deep && echo x > deep/er/x && ln -s ../big deep/link && ln -s /nowhere bad && "
        "d=$(printf 'long%%.0s' $(seq 60)) && mkdir $d && echo y > $d/$d && mkfifo pipe && mkdir -m 555 shut",
            root, root, root);
    assert_int_equal(tar_measure(path_of("in"), &measured, &err), 0);
    assert_int_equal(tar_pack(path_of("in"), "in", collect, &stream, &packed, &err), 0);
    assert_int_equal(measured.bytes, packed.bytes);
    assert_int_equal(packed.left_out, 1); // the pipe
    static const size_t pieces[] = {1, 511, 512, 70000};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        char *folder = new_folder();
        assert_int_equal(unpack(folder, &stream, pieces[i], &unpacked, &err), 0);
        assert_int_equal(unpacked.bytes, packed.bytes);
        run("rm -f %s/in/pipe; diff -r --no-dereference %s/in %s/in && cd %s/in && test $(stat -c %%a big "
            "deep shut | tr '\\n' ' ' | "
            "tr -d ' ') = 640751555",
                root, root, folder, folder);
    }
    // Other programs read it, and we read theirs.
    run("mkdir %s/theirs", root);
    FILE *tar = popen("tar -C /tmp -xf - --one-top-level=\"${ROOT}/theirs\"", "w");
    assert_non_null(tar);
    assert_int_equal(fwrite(stream.bytes, 1, stream.size, tar), stream.size);
    assert_int_equal(pclose(tar), 0);
    run("diff -r --no-dereference %s/in %s/theirs/in", root, root);
    static const char *const formats[] = {"gnu", "pax", "ustar"};
    for (size_t i = 0; i < 3; i++) {
        struct stream other = {0};
        char line[600], buffer[8192], *folder = new_folder();
        size_t got;
        snprintf(line, sizeof line, "cd %s && tar --format=%s -cf - in/deep in/big %s", root, formats[i],
                i == 2 ? "" : "in/long*");
        tar = popen(line, "r");
        while ((got = fread(buffer, 1, sizeof buffer, tar)) > 0)
            collect(&other, buffer, got, NULL);
        assert_int_equal(pclose(tar), 0);
        assert_int_equal(unpack(folder, &other, 1000, &unpacked, &err), 0);
        run("diff -r --no-dereference %s/in/deep %s/in/deep && cmp %s/in/big %s/in/big", root, folder, root,
                folder);
        free(other.bytes);
    }
    free(stream.bytes);
}

static void hostile_archives_get_nowhere(void **state)
{
    struct tar_totals totals;
    struct error err = {0};
    run("mkdir %s/victim && echo safe > %s/victim/file", root, root);
    static const struct {
        const char *first_link, *name;
        bool refused;
    } cases[] = {{NULL, "../victim/file", true}, {NULL, "a/../../victim/file", true},
            {NULL, "/../victim/file", true},
            {"../victim", "link/file", true},  // through a link that came before
            {"../victim/file", "link", false}, // in the place of a link, not through it
            {NULL, "//etc//./x", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stream stream = {0};
        if (cases[i].first_link != NULL)
            add(&stream, "link", '2', "", cases[i].first_link);
        add(&stream, cases[i].name, '0', "evil", "");
        end(&stream);
        int r = unpack(new_folder(), &stream, 512, &totals, &err);
        assert_int_equal(r < 0, cases[i].refused);
        run("test \"$(cat %s/victim/file)\" = safe && test $(ls -A %s/victim | wc -l) = 1", root, root);
        free(stream.bytes);
    }
    // Devices are left out, set-user-id bits dropped, hard links stay inside.
    struct stream stream = {0};
    char *folder = new_folder();
    add(&stream, "device", '3', "", "");
    add(&stream, "file", '0', "text", "");
    add(&stream, "hard", '1', "", "file");
    end(&stream);
    assert_int_equal(unpack(folder, &stream, 512, &totals, &err), 0);
    assert_int_equal(totals.left_out, 1);
    run("cd %s && test ! -e device && test $(stat -c %%a:%%h file) = 755:2 && cmp file hard", folder);
    free(stream.bytes);
    stream = (struct stream){0};
    add(&stream, "hard", '1', "", "../victim/file");
    end(&stream);
    assert_int_equal(unpack(new_folder(), &stream, 512, &totals, &err), -EPROTO);
    free(stream.bytes);
}

static void damage_is_an_error(void **state)
{
    struct stream stream = {0};
    struct tar_totals totals;
    struct error err = {0};
    add(&stream, "file", '0', "text", "");
    end(&stream);
    for (size_t cut = 0; cut <= TAR_HEADER_BLOCK * 2; cut += 100) { // before the end's first block is whole
        struct stream shorter = {stream.bytes, cut};
        assert_int_equal(unpack(new_folder(), &shorter, 100, &totals, &err), -EPROTO);
    }
    stream.bytes[0] ^= 1; // the checksum notices
    assert_int_equal(unpack(new_folder(), &stream, 512, &totals, &err), -EPROTO);
    free(stream.bytes);
    for (unsigned seed = 1; seed < 200; seed++) { // noise is refused or taken, never more
        char noise[2048];
        unsigned value = seed;
        for (size_t i = 0; i < sizeof noise; i++)
            noise[i] = (char)((value = value * 1103515245 + 12345) >> 16);
        struct stream garbage = {noise, sizeof noise};
        assert_true(unpack(new_folder(), &garbage, 300, &totals, &err) <= 0);
    }
}

static void folders_merge(void **state)
{
    struct staging staging;
    struct error err = {0};
    run("mkdir -p %s/m/t/sub %s/m/sub2 && cd %s/m && echo old > t/keep && echo old > t/sub/change", root,
            root, root);
    assert_int_equal(staging_create(path_of("m"), &staging, &err), 0);
    run("mkdir -p %s/n/sub && cd %s/n && echo new > sub/change && echo new > more", staging.path,
            staging.path);
    assert_int_equal(staging_publish(&staging, "n", path_of("m/t"), &err), 0);
    staging_remove(&staging);
    run("cd %s/m && test \"$(cat t/keep t/sub/change t/more | tr '\\n' ' ')\" = 'old new new ' && test $(ls "
        "-A | wc -l) = 2",
            root);
    // A folder over a file, a file over a folder, and a link that stands where a folder would be gone into.
    static const char *const clashes[] = {"mkdir n/keep", "echo x > n/sub", "mkdir n/link"};
    run("ln -s ../sub2 %s/m/t/link", root);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(staging_create(path_of("m"), &staging, &err), 0);
        run("cd %s && mkdir n && %s", staging.path, clashes[i]);
        assert_int_equal(staging_publish(&staging, "n", path_of("m/t"), &err), -EEXIST);
        staging_remove(&staging);
    }
}

static int make_root(void **state)
{
    return mkdtemp(root) == NULL || setenv("ROOT", root, 1) != 0 ? -1 : 0;
}

static int remove_root(void **state)
{
    remove_below(AT_FDCWD, root);
    return access(root, F_OK) == 0 ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(everything_comes_back),
            cmocka_unit_test(hostile_archives_get_nowhere),
            cmocka_unit_test(damage_is_an_error),
            cmocka_unit_test(folders_merge),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
