// SPDX-License-Identifier: Apache-2.0

// This test covers queries to the agent. A query takes no longer than 20 ms and leaves no resources
// behind, whatever the agent does. Only a complete answer is accepted.

#define _GNU_SOURCE
#include "pages/held.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/now.h"
#include "check.h"
#include "fixture.h"

// The limit is 20 ms. A busy machine may add time, so that the test checks the least of several
// times.
static const uint64_t most_ns = 20000000;
enum { attempts = 50 };

static char path[108];
static unsigned char said[600];
static size_t said_length;
static uint64_t said_after_ns;
static int listener;

static void nap(uint64_t ns)
{
	struct timespec time = {.tv_nsec = (long)ns};

	nanosleep(&time, NULL);
}

static void make_socket(int backlog)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	snprintf(path, sizeof path, "%.80s/agent.sock", test_dir());
	memcpy(address.sun_path, path, sizeof path);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK(bind(listener, (const struct sockaddr *)&address, sizeof address) == 0);
	CHECK(listen(listener, backlog) == 0);
}

// serve answers one query with the prepared message.
static void *serve(void *unused)
{
	unsigned char question[64];
	int fd = accept(listener, NULL, NULL);
	uint32_t pid = (uint32_t)getpid();

	(void)unused;
	CHECK_EQUAL(recv(fd, question, sizeof question, 0), 16);
	CHECK(memcmp(question, "NVGH\1\0\20\0\5\0\0\0", 12) == 0);
	CHECK(memcmp(question + 12, &pid, sizeof pid) == 0);
	nap(said_after_ns);
	if (said_length)
		send(fd, said, said_length, MSG_NOSIGNAL);
	close(fd);
	return NULL;
}

static int descriptors(void)
{
	DIR *all = opendir("/proc/self/fd");
	int count = 0;

	while (readdir(all))
		count++;
	closedir(all);
	return count;
}

// ask makes a query, checks that it has no side effects, and returns its duration.
static uint64_t ask(enum vg_held_result want, struct vg_held *held)
{
	int before = descriptors();
	uint64_t begin = vg_now();
	uint64_t took;

	errno = EDOM;
	CHECK_EQUAL(vg_held_ask(path, 5, held), want);
	took = vg_now() - begin;
	CHECK_EQUAL(errno, EDOM);
	CHECK(descriptors() <= before); // the server may close its descriptors meanwhile
	return took;
}

static enum vg_held_result converse(struct vg_held *held)
{
	enum vg_held_result result;
	pthread_t server;

	make_socket(4);
	CHECK(pthread_create(&server, NULL, serve, NULL) == 0);
	result = vg_held_ask(path, 5, held);
	CHECK(pthread_join(server, NULL) == 0);
	close(listener);
	return result;
}

static void say(const char *magic, unsigned version, unsigned size, unsigned count, size_t length)
{
	uint16_t head[2] = {(uint16_t)version, (uint16_t)size};

	memset(said, 0, sizeof said);
	memcpy(said, magic, 4);
	memcpy(said + 4, head, sizeof head);
	memcpy(said + 8, &count, sizeof count);
	said_length = length;
	said_after_ns = 0;
}

static void say_record(unsigned number, uint8_t uuid, uint64_t bytes)
{
	memset(said + 16 + 24 * number, uuid, 16);
	memcpy(said + 16 + 24 * number + 16, &bytes, sizeof bytes);
}

static void test_answers(void)
{
	struct vg_held held;

	say("NVGH", 1, 16, 0, 16);
	CHECK_EQUAL(converse(&held), VG_HELD_ANSWERED);
	CHECK_EQUAL(held.count, 0);
	say("NVGH", 1, 16 + 4 * 24, 4, 16 + 4 * 24);
	say_record(0, 7, 12345);
	say_record(1, 8, 0);
	say_record(2, 9, UINT64_MAX);
	say_record(3, 10, UINT64_C(1) << 40);
	CHECK_EQUAL(converse(&held), VG_HELD_ANSWERED);
	CHECK_EQUAL(held.count, 2);
	CHECK_EQUAL(held.gpus[0].uuid[15], 7);
	CHECK_EQUAL(held.gpus[0].bytes, 12345);
	CHECK_EQUAL(held.gpus[1].uuid[0], 10);
	CHECK_EQUAL(held.gpus[1].bytes, UINT64_C(1) << 40);
	say("NVGH", 1, 16 + VG_MAX_DEVICES * 24, VG_MAX_DEVICES, 16 + VG_MAX_DEVICES * 24);
	CHECK_EQUAL(converse(&held), VG_HELD_ANSWERED);
}

static void test_garbage(void)
{
	static const struct {
		const char *magic;
		unsigned version, size, count;
		size_t length;
	} cases[] = {
		{"NVGH", 1, 16, 0, 0},	   {"NVGR", 1, 16, 0, 16},   {"NVGH", 2, 16, 0, 16},
		{"NVGH", 1, 40, 0, 40},	   {"NVGH", 1, 16, 1, 16},   {"NVGH", 1, 40, 1, 16},
		{"NVGH", 1, 16, 1, 40},	   {"NVGH", 1, 8, 0, 8},     {"NVGH", 1, 41, 1, 41},
		{"NVGH", 1, 16, 1000, 16}, {"NVGH", 1, 424, 17, 424}, {"NVGH", 1, 40, 0x10000001, 40},
	};
	struct vg_held held;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		say(cases[i].magic, cases[i].version, cases[i].size, cases[i].count, cases[i].length);
		CHECK_EQUAL(converse(&held), VG_HELD_SILENT);
		CHECK_EQUAL(held.count, 0);
	}
}

// within_bounds checks that at least one query takes no longer than allowed.
static void within_bounds(enum vg_held_result want)
{
	uint64_t least = UINT64_MAX;
	struct vg_held held;

	for (int i = 0; i < attempts && least > most_ns; i++) {
		uint64_t took = ask(want, &held);

		least = took < least ? took : least;
	}
	CHECK(least <= most_ns);
}

// hold keeps connections open without an answer, until the test ends hold.
static pid_t hold(void)
{
	pid_t child;

	make_socket(128);
	child = fork();
	CHECK(child >= 0);
	if (child)
		return child;
	for (;;)
		accept(listener, NULL, NULL);
}

static void test_hangs(void)
{
	pid_t child = hold();

	within_bounds(VG_HELD_SILENT);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	close(listener);
	// The listener's queue is full, and the listener accepts no connection.
	make_socket(0);
	within_bounds(VG_HELD_SILENT);
	close(listener);
}

static void test_late(void)
{
	struct vg_held held;

	say("NVGH", 1, 16, 0, 16);
	said_after_ns = 150000000;
	CHECK_EQUAL(converse(&held), VG_HELD_SILENT);
	CHECK_EQUAL(held.count, 0);
}

static void test_nobody(void)
{
	struct vg_held held;

	make_socket(1);
	close(listener);
	ask(VG_HELD_NOBODY, &held);
	snprintf(path, sizeof path, "/nowhere/agent.sock");
	ask(VG_HELD_NOBODY, &held);
	*path = '\0';
	ask(VG_HELD_NOBODY, &held);
}

int main(void)
{
	test_answers();
	test_garbage();
	test_hangs();
	test_late();
	test_nobody();
	return 0;
}
