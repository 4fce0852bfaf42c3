// SPDX-License-Identifier: Apache-2.0

// This test checks that a registration with the agent does not delay or end the program, and leaves
// no resources behind.

#define _GNU_SOURCE
#include "pages/registration.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/now.h"
#include "check.h"
#include "fixture.h"

// soon_ns is longer than all attempts for a full queue take, even on a busy machine.
static const uint64_t soon_ns = 500000000;

static char dir[64];
static char path[vg_agent_path_size];

static int agent(int backlog)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(dir, sizeof dir, "%.40s", test_dir());
	snprintf(address.sun_path, sizeof address.sun_path, "%s/agent", dir);
	CHECK(mkdir(address.sun_path, 0755) == 0);
	snprintf(address.sun_path, sizeof address.sun_path, "%s/agent/agent.sock", dir);
	CHECK(bind(fd, (const struct sockaddr *)&address, sizeof address) == 0);
	CHECK(listen(fd, backlog) == 0);
	return fd;
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

// call registers, and checks that the registration has no side effects.
static void call(void)
{
	int before = descriptors();
	uint64_t begin = vg_now();

	vg_registration_path(dir, path);
	errno = EDOM;
	vg_registration_send(path, 7);
	CHECK(vg_now() - begin < soon_ns);
	CHECK_EQUAL(errno, EDOM);
	CHECK_EQUAL(descriptors(), before);
}

static void test_the_agent_is_told(void)
{
	int fd = agent(4);
	unsigned char said[64];
	uint32_t pid = (uint32_t)getpid();
	int from;

	call();
	from = accept(fd, NULL, NULL);
	CHECK(from >= 0);
	CHECK_EQUAL(recv(from, said, sizeof said, 0), 16);
	CHECK(memcmp(said, "NVGR\1\0\20\0\7\0\0\0", 12) == 0);
	CHECK(memcmp(said + 12, &pid, sizeof pid) == 0);
	CHECK_EQUAL(recv(from, said, sizeof said, 0), 0);
	close(from);
	close(fd);
}

static void test_an_agent_that_does_not_answer(void)
{
	int fd = agent(0);

	for (int i = 0; i < 20; i++)
		call();
	close(fd);
}

static void test_an_agent_that_is_gone(void)
{
	close(agent(4));
	call();
	snprintf(dir, sizeof dir, "%s", "/nowhere");
	call();
}

static void test_a_long_path(void)
{
	char deep[200];

	memset(deep, 'x', sizeof deep);
	deep[0] = '/';
	deep[sizeof deep - 1] = '\0';
	vg_registration_path(deep, path);
	CHECK(*path == '\0');
	vg_registration_send(path, 0);
}

int main(void)
{
	test_the_agent_is_told();
	test_an_agent_that_does_not_answer();
	test_an_agent_that_is_gone();
	test_a_long_path();
	return 0;
}
