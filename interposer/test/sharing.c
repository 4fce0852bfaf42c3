// SPDX-License-Identifier: Apache-2.0

// sharing exports and imports memory, and frees the memory or ends the process on either side. The
// driver keeps memory as long as any process holds the memory. The argument selects the test.
// sharing exits with 0 if all calls return their native results. unkind_test.sh runs this program.

#define _GNU_SOURCE
#include <sys/wait.h>
#include <time.h>

#include "unkind.h"

// ---- memory that outlives its handle

// hold_one allocates memory, and keeps only its export or import.
static int hold_one(int imported)
{
	uint64_t handle;
	uint64_t again;
	int result = CALL("cuMemCreate", CREATE, &handle, imported ? GIB / 2 : GIB, &shareable, 0);
	int fd;

	if (result)
		return result;
	CHECK_EQUAL(CALL("cuMemExportToShareableHandle", EXPORT, &fd, handle, posix_fd, 0), 0);
	if (imported) {
		result = CALL("cuMemImportFromShareableHandle", IMPORT, &again, (void *)(uintptr_t)fd, posix_fd);
		close(fd);
	}
	CHECK_EQUAL(CALL("cuMemRelease", (uint64_t), handle), 0);
	return result;
}

static void test_exports(int imported)
{
	int held = 0;

	use_gpu(0);
	while (held < 6 && hold_one(imported) == 0)
		held++;
	printf("{\"pid\":%d,\"held\":%d}\n", (int)getpid(), held);
}

// Memory that its own exporter imports is held once and charged twice. The rest of the limit can be
// allocated only after the end of the import, which ends the excess charge.
static void test_import_credit(void)
{
	const struct timespec until_measured = {.tv_nsec = 300000000};
	uint64_t handle;
	uint64_t again;
	uint64_t other;
	int fd;

	use_gpu(0);
	CHECK_EQUAL(CALL("cuMemCreate", CREATE, &handle, GIB / 2, &shareable, 0), 0);
	CHECK_EQUAL(CALL("cuMemExportToShareableHandle", EXPORT, &fd, handle, posix_fd, 0), 0);
	CHECK_EQUAL(CALL("cuMemImportFromShareableHandle", IMPORT, &again, (void *)(uintptr_t)fd, posix_fd), 0);
	for (int i = 0; i < 3; i++) {
		nanosleep(&until_measured, NULL);
		CHECK_EQUAL(CALL("cuMemCreate", CREATE, &other, 16 * MIB, &shareable, 0), 0);
		CHECK_EQUAL(CALL("cuMemRelease", (uint64_t), other), 0);
	}
	CHECK_EQUAL(CALL("cuMemRelease", (uint64_t), again), 0);
	while (CALL("cuMemCreate", CREATE, &other, 128 * MIB, &shareable, 0) == 0)
		continue;
	printf("{\"pid\":%d}\n", (int)getpid());
}

// Memory that was exported and released leaves no charge after a measurement.
static void test_exports_released(void)
{
	const struct timespec moment = {.tv_nsec = 300000000};
	uint64_t handle;
	uint64_t before;
	uint64_t most;
	int fd;

	use_gpu(0);
	before = held();
	most = left();
	for (int i = 0; i < 6; i++) {
		int result = CALL("cuMemCreate", CREATE, &handle, GIB, &shareable, 0);

		// On a busy machine the agent may answer late.
		for (int tries = 0; result == CUDA_ERROR_OUT_OF_MEMORY && tries < 20; tries++) {
			nanosleep(&moment, NULL);
			result = CALL("cuMemCreate", CREATE, &handle, GIB, &shareable, 0);
		}
		CHECK_EQUAL(result, 0);
		CHECK_EQUAL(CALL("cuMemExportToShareableHandle", EXPORT, &fd, handle, posix_fd, 0), 0);
		close(fd);
		CHECK_EQUAL(CALL("cuMemRelease", (uint64_t), handle), 0);
	}
	CHECK_EQUAL(held(), before);
	for (int tries = 0; left() != most && tries < 20; tries++)
		nanosleep(&moment, NULL);
	CHECK_EQUAL(left(), most);
}

enum { exports_bytes = 16 << 20 };

// export_one allocates, exports and releases memory. With `kept`, the descriptor stays open.
// export_one reports whether the limit had room.
static bool export_one(bool kept)
{
	uint64_t handle;
	int fd;

	if (CALL("cuMemCreate", CREATE, &handle, exports_bytes, &shareable, 0))
		return false;
	CHECK_EQUAL(CALL("cuMemExportToShareableHandle", EXPORT, &fd, handle, posix_fd, 0), 0);
	if (!kept)
		close(fd);
	CHECK_EQUAL(CALL("cuMemRelease", (uint64_t), handle), 0);
	return true;
}

// export_many exports repeatedly. On a busy machine the agent may answer late.
static void export_many(int count)
{
	const struct timespec moment = {.tv_nsec = 100000000};

	for (int i = 0, tries = 0; i < count; i++)
		for (; !export_one(false); tries++) {
			CHECK(tries < 50);
			nanosleep(&moment, NULL);
		}
}

static void end_contexts(CUcontext made)
{
	if (made)
		CHECK_EQUAL(CALL("cuCtxDestroy_v2", (CUcontext), made), 0);
	else
		CHECK_EQUAL(CALL("cuDevicePrimaryCtxRelease_v2", (CUdevice), 0), 0);
}

// After its exports are gone, a process may end its last context and begin a new context.
static void test_contexts_again(void)
{
	CUcontext context = NULL;

	for (int i = 0; i < 6; i++) {
		if (i % 2)
			CHECK_EQUAL(CALL("cuCtxCreate_v2", (CUcontext *, unsigned, CUdevice), &context, 0, 0), 0);
		else
			use_gpu(0);
		export_many(20);
		end_contexts(i % 2 ? context : NULL);
	}
}

// test_exports_kept checks that exports in use stay charged without a context, and with a new
// context. unkind_test.sh checks the physical memory.
static void test_exports_kept(void)
{
	for (int i = 0; i < 3; i++) {
		use_gpu(0);
		while (export_one(true))
			continue;
		end_contexts(NULL);
	}
	printf("{\"pid\":%d}\n", (int)getpid());
}

// A process without a context has exports, ended or kept, and stays alive. unkind_test.sh checks
// the memory granted to other processes.
static void test_exports_left(bool kept)
{
	use_gpu(0);
	for (int i = 0; i < 64; i++)
		CHECK(export_one(kept));
	end_contexts(NULL);
	printf("{\"pid\":%d}\n", (int)getpid());
	fflush(stdout);
	pause();
}

// ---- memory whose exporter dies

enum { handed_on = 8 };

static bool send_handle(int parent, size_t bytes)
{
	uint64_t handle;
	int fd;

	if (CALL("cuMemCreate", CREATE, &handle, bytes, &shareable, 0))
		return false;
	CHECK_EQUAL(CALL("cuMemExportToShareableHandle", EXPORT, &fd, handle, posix_fd, 0), 0);
	send_fd(parent, fd);
	return true;
}

// hand_on allocates memory when its parent requests it, and dies when the parent has received the
// memory.
static int hand_on(int parent, bool pooled)
{
	char byte;

	CHECK(read(parent, &byte, 1) == 1);
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_gpu(0);
	if (pooled ? send_piece(parent, 256 * MIB) : send_handle(parent, 256 * MIB))
		CHECK(read(parent, &byte, 1) == 1);
	return 0;
}

// take_handle imports a handle without mapping it.
static bool take_handle(int child, bool *ended)
{
	uint64_t handle;
	int fd = receive_fd(child);
	bool taken;

	*ended = fd < 0;
	if (*ended)
		return false;
	taken = CALL("cuMemImportFromShareableHandle", IMPORT, &handle, (void *)(uintptr_t)fd, posix_fd) == 0;
	close(fd);
	return taken;
}

// take_piece imports an allocation of a pool. take_piece frees every second piece, whose memory the
// pool keeps.
static bool take_piece(int child, bool *ended)
{
	static int pieces;
	struct exported_piece piece;
	uint64_t address;
	void *pool;

	*ended = !receive_pool(child, &pool, &piece);
	if (*ended || import_piece(&address, pool, &piece))
		return false;
	if (pieces++ % 2)
		CHECK_EQUAL(CALL("cuMemFreeAsync", (uint64_t, void *), address, NULL), 0);
	return true;
}

// take_over imports a child's memory, and lets the child end.
static bool take_over(int child, bool pooled)
{
	bool ended;
	bool taken;

	CHECK(write(child, "", 1) == 1);
	taken = pooled ? take_piece(child, &ended) : take_handle(child, &ended);
	if (!ended)
		CHECK(write(child, "", 1) == 1);
	CHECK(wait(NULL) > 0);
	return taken;
}

// An importer holds allocations of 256 MiB from processes that end one after another.
static void test_handed_on(bool pooled)
{
	int children[handed_on];
	int taken = 0;

	for (int i = 0; i < handed_on; i++) { // before this process uses CUDA
		int ends[2];
		pid_t child;

		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
		child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			close(ends[0]);
			_exit(hand_on(ends[1], pooled));
		}
		close(ends[1]);
		children[i] = ends[0];
	}
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_gpu(0);
	while (taken < handed_on && take_over(children[taken], pooled))
		taken++;
	printf("{\"pid\":%d,\"taken\":%d}\n", (int)getpid(), taken);
	fflush(stdout);
}

struct ipc_handle {
	char bytes[64];
};

static void bequeath(int heir, const char *way)
{
	struct ipc_handle handle;
	uint64_t address;

	if (strcmp(way, "handle") == 0) {
		CHECK(send_handle(heir, GIB));
	} else if (strcmp(way, "pool") == 0) {
		CHECK(send_piece(heir, GIB));
	} else {
		CHECK_EQUAL(CALL("cuMemAlloc_v2", ALLOC, &address, GIB), 0);
		CHECK_EQUAL(CALL("cuIpcGetMemHandle", (struct ipc_handle *, uint64_t), &handle, address), 0);
		CHECK(write(heir, &handle, sizeof handle) == (ssize_t)sizeof handle);
	}
}

static void inherit(int from, const char *way)
{
	struct exported_piece piece;
	struct ipc_handle handle;
	uint64_t address;
	void *pool;
	bool ended;

	if (strcmp(way, "handle") == 0) {
		CHECK(take_handle(from, &ended));
	} else if (strcmp(way, "pool") == 0) {
		CHECK(receive_pool(from, &pool, &piece));
		CHECK_EQUAL(import_piece(&address, pool, &piece), 0);
	} else {
		CHECK(read(from, &handle, sizeof handle) == (ssize_t)sizeof handle);
		CHECK_EQUAL(CALL("cuIpcOpenMemHandle_v2", (uint64_t *, struct ipc_handle, unsigned), &address, handle,
				 1), 0);
	}
}

// An importer with a current GPU holds 1 GiB on the first GPU from a process that has ended. The
// importer was measured earlier, while the ended process held the memory. unkind_test.sh checks the
// memory granted to other processes.
static void test_inherited(const char *way, int gpu)
{
	const struct timespec until_measured = {.tv_nsec = 300000000};
	uint64_t piece;
	int ends[2];
	pid_t child;
	char byte = 0;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	child = fork();
	CHECK(child >= 0);
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_gpu(child ? gpu : 0);
	if (child == 0) {
		bequeath(ends[1], way);
		CHECK(read(ends[1], &byte, 1) == 1);
		_exit(0);
	}
	inherit(ends[0], way);
	for (int i = 0; i < 3; i++) {
		nanosleep(&until_measured, NULL);
		CHECK_EQUAL(CALL("cuMemAlloc_v2", ALLOC, &piece, 16 * MIB), 0);
		CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), piece), 0);
	}
	CHECK(write(ends[0], &byte, 1) == 1);
	CHECK(waitpid(child, NULL, 0) == child);
	printf("{\"pid\":%d}\n", (int)getpid());
	fflush(stdout);
	pause();
}

int main(int argc, char **argv)
{
	const char *test = argc > 1 ? argv[1] : "";

	if (strncmp(test, "handed-on", strlen("handed-on")) == 0) { // these tests fork first
		test_handed_on(strcmp(test, "handed-on-pools") == 0);
		return 0;
	}
	if (strcmp(test, "inherited") == 0 && argc > 3) {
		test_inherited(argv[2], atoi(argv[3]));
		return 0;
	}
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	if (strcmp(test, "exports") == 0)
		test_exports(0);
	else if (strcmp(test, "imports") == 0)
		test_exports(1);
	else if (strcmp(test, "import-credit") == 0)
		test_import_credit();
	else if (strcmp(test, "given-back") == 0)
		test_exports_released();
	else if (strcmp(test, "contexts-again") == 0)
		test_contexts_again();
	else if (strcmp(test, "exports-kept") == 0)
		test_exports_kept();
	else if (strncmp(test, "exports-left", strlen("exports-left")) == 0)
		test_exports_left(strcmp(test, "exports-left-kept") == 0);
	else
		return 64;
	return 0;
}
