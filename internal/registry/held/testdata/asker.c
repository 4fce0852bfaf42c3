// SPDX-License-Identifier: Apache-2.0
//
// This program allocates GPU memory through the driver, and asks the agent for the amount. The
// program's arguments are the path of the driver's library, the path of the agent's socket, and the
// bytes to allocate. An empty path of the socket selects the socket of `vgpuctl run`. The first
// line of output is the program's pid. Each line of standard input is a question. The answer to a
// question is "none" or, for each record, " UUID=BYTES".

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void allocate(const char *library, uint64_t bytes)
{
	void *driver = dlopen(library, RTLD_NOW);
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
	int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
	int (*current)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
	int (*alloc)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))dlsym(driver, "cuMemAlloc_v2");
	void *context;
	uint64_t pointer;

	if (init(0) || retain(&context, 0) || current(context) || alloc(&pointer, bytes)) {
		fprintf(stderr, "no memory\n");
		exit(1);
	}
}

static void ask(const char *path)
{
	struct { char magic[4]; uint16_t version, size; uint32_t slot, pid; } question = {
		{'N', 'V', 'G', 'H'}, 1, 16, 0, (uint32_t)getpid()};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	unsigned char answer[512];
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	ssize_t size = -1;

	if (*path)
		strncpy(address.sun_path, path, sizeof address.sun_path - 1);
	else
		snprintf(address.sun_path, sizeof address.sun_path, "%s/agent/agent.sock",
			 getenv("NRI_VGPU_DIR"));
	if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
	    send(fd, &question, sizeof question, MSG_NOSIGNAL) > 0)
		size = recv(fd, answer, sizeof answer, 0);
	close(fd);
	if (size < 16) {
		puts("none");
		return;
	}
	for (ssize_t at = 16; at + 24 <= size; at += 24) {
		uint64_t bytes;

		memcpy(&bytes, answer + at + 16, sizeof bytes);
		putchar(' ');
		for (int i = 0; i < 16; i++)
			printf("%02x", answer[at + i]);
		printf("=%llu", (unsigned long long)bytes);
	}
	putchar('\n');
}

int main(int argc, char **argv)
{
	char line[16];

	if (argc != 4)
		return 2;
	allocate(argv[1], strtoull(argv[3], NULL, 10));
	printf("%d\n", (int)getpid());
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		ask(argv[2]);
		fflush(stdout);
	}
	return 0;
}
