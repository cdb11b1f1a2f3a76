// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without libFuzzer: over the files of a folder, over each of their one-bit changes
// (bounded), and over random inputs from a fixed seed. Usage: TARGET CORPUS_FOLDER
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

// Under the sanitizers each input takes ten times as long; longer campaigns are the fuzzer's (preset fuzz).
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { INPUT_MAX = 1 << 20, FLIPS_PER_FILE = 2500, RANDOM_INPUTS = 2500 };
#else
enum { INPUT_MAX = 1 << 20, FLIPS_PER_FILE = 20000, RANDOM_INPUTS = 20000 };
#endif

static uint64_t runs, random_state = 42;

static uint64_t random_next(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state >> 33;
}

static void run(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size + 1); // an exact allocation, so that a sanitizer sees reads past the end
    memcpy(copy, bytes, size);
    uint8_t *exact = realloc(copy, size > 0 ? size : 1);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    runs++;
}

static void run_file(const char *path, uint8_t *buffer)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    size_t size = fread(buffer, 1, INPUT_MAX, file);
    fclose(file);
    run(buffer, size);
    uint64_t bits = (uint64_t)size * 8, step = bits / FLIPS_PER_FILE + 1;
    for (uint64_t bit = 0; bit < bits; bit += step) {
        buffer[bit / 8] ^= (uint8_t)(1 << bit % 8);
        run(buffer, size);
        buffer[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (size_t cut = 0; cut < size; cut += size / 256 + 1)
        run(buffer, cut);
}

int main(int argc, char **argv)
{
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    if (dir == NULL) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER (it must exist)\n", argv[0]);
        return 2;
    }
    uint8_t *buffer = malloc(INPUT_MAX);
    unsigned files = 0;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        run_file(path, buffer);
        files++;
    }
    closedir(dir);
    for (unsigned i = 0; i < RANDOM_INPUTS; i++) {
        size_t size = random_next() % 600;
        for (size_t k = 0; k < size; k++)
            buffer[k] = (uint8_t)random_next();
        run(buffer, size);
    }
    free(buffer);
    printf("%u files, %llu inputs\n", files, (unsigned long long)runs);
    return files > 0 ? 0 : 1;
}
