/* SPDX-License-Identifier: Apache-2.0 */
/* The sources of the secret: the config, DDL_SECRET, or a file that no other user can read. Without
 * libcrypto a secret is an error. */
#include <dlfcn.h>

#include "connect/endpoint/endpoint.h"
#include "connect/handshake/handshake.h"
#include "ranks.h"

static char folder[] = "/tmp/ddl-secret-XXXXXX", path[sizeof folder + 16];

static void write_file(const void *bytes, size_t n, mode_t mode)
{
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, mode);
    CHECK(fd >= 0 && !fchmod(fd, mode) && write(fd, bytes, n) == (ssize_t)n, "%s", path);
    close(fd);
}

static void write_text(const char *text, mode_t mode)
{
    write_file(text, strlen(text), mode);
}

/* Check that an endpoint that is created now has this secret; NULL: none. */
static void check_secret(const ddl_endpoint_config *config, const char *secret)
{
    ddl_endpoint *endpoint;
    ddl__job right;
    OK(ddl_endpoint_create(config, &endpoint));
    const ddl__job *job = ddl__endpoint_job(endpoint);
    CHECK(!job->crypto == !secret, "a secret, or none");
    OK(ddl__job_open(&right, secret ? secret : "", false));
    CHECK(!memcmp(right.key, job->key, sizeof right.key), "another secret than \"%s\"",
          secret ? secret : "");
    ddl__job_close(&right);
    ddl_endpoint_destroy(endpoint);
}

static void test_sources(void)
{
    ddl_endpoint_config config = {.struct_size = sizeof config};
    unsetenv("DDL_SECRET");
    unsetenv("DDL_SECRET_FILE");
    check_secret(NULL, NULL);
    write_text("of the file\n", 0600);
    setenv("DDL_SECRET_FILE", path, 1);
    check_secret(&config, "of the file");
    write_text("without an end", 0400);
    check_secret(&config, "without an end");
    write_text("of Windows\r\n", 0600);
    check_secret(&config, "of Windows");
    setenv("DDL_SECRET", "of the environment", 1);
    check_secret(&config, "of the environment");
    setenv("DDL_SECRET", "", 1);
    check_secret(&config, NULL);
    config.secret = "of the config";
    check_secret(&config, "of the config");
    config.secret = "";
    check_secret(&config, NULL);
    unsetenv("DDL_SECRET");
}

#define WRONG(words)                                                                               \
    do {                                                                                           \
        ddl_endpoint *endpoint_;                                                                   \
        INVALID(ddl_endpoint_create(NULL, &endpoint_), words);                                     \
        CHECK(strstr(ddl_last_error(), "DDL_SECRET_FILE"), "\"%s\"", ddl_last_error());            \
        CHECK(!strstr(ddl_last_error(), "hidden"), "the message tells the secret");                \
    } while (0)

static void test_wrong_files(void)
{
    static const mode_t open_modes[] = {0644, 0604, 0640, 0660, 0602, 0601};
    static char large[DDL__KEY * 256];
    for (size_t i = 0; i < sizeof open_modes / sizeof *open_modes; i++) {
        write_text("hidden", open_modes[i]);
        WRONG("set mode 600");
    }
    write_text("", 0600);
    WRONG("is empty");
    write_text("\n", 0600);
    WRONG("is empty");
    write_file("hidden\0too", 10, 0600);
    WRONG("zero byte");
    memset(large, 'x', sizeof large);
    write_file(large, sizeof large, 0600);
    WRONG("at most 4095 bytes");
    write_file(large, 4095, 0600);
    ddl_endpoint *endpoint;
    OK(ddl_endpoint_create(NULL, &endpoint));
    ddl_endpoint_destroy(endpoint);
    if (geteuid() == 0) {
        write_text("hidden", 0600);
        CHECK(!chown(path, 12345, 12345), "chown");
        WRONG("belongs to user 12345");
    }
    unlink(path);
    WRONG("No such file");
    CHECK(!mkdir(path, 0700), "mkdir");
    WRONG("is not a regular file");
    rmdir(path);
    CHECK(!mkfifo(path, 0600), "mkfifo"); /* opening it would wait for a writer */
    WRONG("is not a regular file");
    unlink(path);
    setenv("DDL_SECRET_FILE", "", 1);
    check_secret(NULL, NULL);
    unsetenv("DDL_SECRET_FILE");
}

/* -------------------------------------------------------------------------------- no libcrypto */

static bool hidden;

WRAP(void *, dlopen, (const char *name, int flags))
{
    return hidden ? NULL : __real_dlopen(name, flags);
}

/* Check for an error with advice if a secret is set, and for no error otherwise. */
static void test_no_libcrypto(void)
{
    ddl_endpoint *endpoint;
    ddl_endpoint_config config = {.struct_size = sizeof config, .secret = "hidden"};
    hidden = true;
    REFUSED(ddl_endpoint_create(&config, &endpoint), DDL_EUNSUPPORTED, "libcrypto.so.3");
    CHECK(strstr(ddl_last_error(), "install") && strstr(ddl_last_error(), "DDL_SECRET="), "\"%s\"",
          ddl_last_error());
    config.secret = "";
    check_secret(&config, NULL);
    hidden = false;
}

int main(void)
{
    CHECK(mkdtemp(folder), "mkdtemp");
    snprintf(path, sizeof path, "%s/secret", folder);
    test_sources();
    test_wrong_files();
    test_no_libcrypto();
    rmdir(folder);
}
