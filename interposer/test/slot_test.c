// SPDX-License-Identifier: Apache-2.0

// This test checks that a slot belongs to a process exactly as long as the process is alive.

#define _GNU_SOURCE
#include "pages/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sem.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/now.h"
#include "check.h"
#include "fixture.h"
#include "pages/usage.h"
#include "reserve.h"
#include "slots.h"

extern char **environ;

// start_holder starts a process that takes a slot with 100 bytes, performs the action `then`,
// reports through a pipe, and waits to be killed.
static pid_t start_holder(void (*then)(void))
{
	int ready[2];
	char byte;
	pid_t pid;

	CHECK(pipe(ready) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		static struct vg_pages pages;

		attach(&pages);
		CHECK(test_reserve(&pages, 0, 100));
		CHECK(write(ready[1], "", 1) == 1);
		if (then)
			then();
		for (;;)
			pause();
	}
	close(ready[1]);
	CHECK(read(ready[0], &byte, 1) == 1);
	close(ready[0]);
	return pid;
}

static void finish(pid_t pid)
{
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, NULL, 0) == pid);
}

static void test_killed_process_gives_back(void)
{
	struct vg_pages pages;
	pid_t holder;

	attach_new(&pages, 1000);
	holder = start_holder(NULL);
	CHECK_EQUAL(used_after_reaping(&pages), 100);
	CHECK(!test_reserve(&pages, 0, 901));
	finish(holder);
	// Any process that needs the memory reaps the slot without a wait.
	CHECK(test_reserve(&pages, 0, 1000));
	CHECK_EQUAL(vg_usage_memory(&pages, 0), 1000);
	vg_pages_close(&pages);
}

static pid_t *shared_child;

static pid_t *new_shared_child(void)
{
	void *shared = mmap(NULL, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
			    0);

	CHECK(shared != MAP_FAILED);
	return shared;
}

// start_shared_holder makes pages, attaches to them, and starts a holder. start_shared_holder returns
// when `then` has set *shared_child.
static pid_t start_shared_holder(struct vg_pages *pages, void (*then)(void))
{
	pid_t holder;

	shared_child = new_shared_child();
	attach_new(pages, 1000);
	holder = start_holder(then);
	while (!__atomic_load_n(shared_child, __ATOMIC_SEQ_CST))
		usleep(1000);
	return holder;
}

static void fork_sleeper(void)
{
	pid_t pid = fork();

	if (pid == 0)
		for (;;)
			pause();
	__atomic_store_n(shared_child, pid, __ATOMIC_SEQ_CST);
}

static void become_sleep(void)
{
	char *arguments[] = {"sleep", "1000", NULL};

	execvp(arguments[0], arguments);
	abort();
}

static void fork_and_exec(void)
{
	pid_t pid = fork();

	if (pid == 0)
		become_sleep();
	__atomic_store_n(shared_child, pid, __ATOMIC_SEQ_CST);
}

static void wait_until_unused(struct vg_pages *pages)
{
	for (int i = 0; i < 2000 && used_after_reaping(pages); i++)
		usleep(1000);
	CHECK_EQUAL(vg_usage_memory(pages, 0), 0);
}

static bool is_live(const struct vg_pages *pages, uint32_t slot)
{
	static bool live[VG_MAX_SLOTS];

	vg_slots_live(pages, live);
	return live[slot];
}

// A driver keeps the memory of a dead process as long as a child has the driver's files.
static void test_forked_child_keeps_the_memory(void)
{
	struct vg_pages pages;
	struct vg_pages other;
	pid_t holder;

	holder = start_shared_holder(&pages, fork_sleeper);
	finish(holder);
	CHECK(!is_live(&pages, 1));
	CHECK_EQUAL(used_after_reaping(&pages), 100);
	CHECK(!test_reserve(&pages, 0, 901));
	attach(&other);
	CHECK_EQUAL(other.slot, 2);
	vg_pages_close(&other);
	kill(*shared_child, SIGKILL);
	wait_until_unused(&pages);
	vg_pages_close(&pages);
}

// A dead process's work is charged, even if a child keeps the process's memory.
static void test_forked_child_keeps_no_work(void)
{
	const uint64_t ms = 1000000;
	struct vg_container_device *sum;
	struct vg_slot_device *work;
	struct vg_pages pages;
	pid_t holder;

	holder = start_shared_holder(&pages, fork_sleeper);
	sum = &pages.usage->header.devices[0];
	work = &pages.usage->slots[1].devices[0];
	work->gpu_time_ns = 7;
	work->unmeasured_ns = vg_now() - 30 * ms;
	finish(holder);
	vg_slots_settle(&pages, 0);
	CHECK(sum->spent_ns >= 30 * ms);
	CHECK_EQUAL(sum->retired_gpu_time_ns, sum->spent_ns + 7);
	CHECK_EQUAL(used_after_reaping(&pages), 100);
	CHECK_EQUAL(sum->retired_gpu_time_ns, sum->spent_ns + 7);
	kill(*shared_child, SIGKILL);
	wait_until_unused(&pages);
	vg_pages_close(&pages);
}

// A child that has called execve() has lost the driver's files.
static void test_executed_child_keeps_nothing(void)
{
	struct vg_pages pages;
	pid_t holder;

	holder = start_shared_holder(&pages, fork_and_exec);
	finish(holder);
	wait_until_unused(&pages);
	CHECK(kill(*shared_child, SIGKILL) == 0);
	vg_pages_close(&pages);
}

static void close_everything(void)
{
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	// A second open and close of the file drops POSIX locks, but not this lock.
	CHECK(chdir(dir) == 0);
	close(open("usage", O_RDWR));
	__atomic_store_n(shared_child, 1, __ATOMIC_SEQ_CST);
}

static void test_slot_outlives_its_descriptors(void)
{
	struct vg_pages pages;
	pid_t holder;

	holder = start_shared_holder(&pages, close_everything);
	CHECK_EQUAL(used_after_reaping(&pages), 100);
	finish(holder);
	CHECK_EQUAL(used_after_reaping(&pages), 0);
	vg_pages_close(&pages);
}

// ---- a process of several threads that ends slowly

enum { semaphores = 32000, semaphore_sets = 16 };

static int sets[semaphore_sets];

static struct flock whole(short type)
{
	return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_len = 1};
}

// undo_slowly runs a thread whose end takes milliseconds, after it has left the address space and
// before it drops the descriptors. The kernel needs this time to undo its semaphores.
static void *undo_slowly(void *argument)
{
	struct sembuf up = {.sem_op = 1, .sem_flg = SEM_UNDO};

	CHECK(unshare(CLONE_SYSVSEM) == 0);
	for (int i = 0; i < semaphore_sets; i++)
		CHECK(semop(sets[i], &up, 1) == 0);
	__atomic_store_n(shared_child, 1, __ATOMIC_SEQ_CST);
	for (;;)
		pause();
	return argument;
}

// hold_the_driver takes a lock that the kernel drops with the process's descriptors, like the
// driver's memory.
static void hold_the_driver(void)
{
	struct flock lock = whole(F_WRLCK);
	pthread_t thread;

	CHECK(fcntl(open_driver(), F_SETLK, &lock) == 0);
	CHECK(pthread_create(&thread, NULL, undo_slowly, NULL) == 0);
}

// Other processes are granted a process's memory when the process is gone, and not as soon as the
// process's slot is free.
static void end_slowly(void)
{
	struct flock lock = whole(F_WRLCK);
	struct vg_pages pages;
	pid_t holder;
	int driver;

	holder = start_shared_holder(&pages, hold_the_driver);
	driver = open_driver();
	kill(holder, SIGKILL);
	while (is_live(&pages, 1))
		continue;
	CHECK(test_reserve(&pages, 0, 1000));
	CHECK(fcntl(driver, F_GETLK, &lock) == 0);
	CHECK_EQUAL(lock.l_type, F_UNLCK);
	CHECK(waitpid(holder, NULL, 0) == holder);
	close(driver);
	vg_pages_close(&pages);
}

static void test_process_that_ends_slowly(void)
{
	for (int i = 0; i < semaphore_sets; i++)
		CHECK((sets[i] = semget(IPC_PRIVATE, semaphores, 0600)) >= 0);
	for (int i = 0; i < 20; i++)
		end_slowly();
	for (int i = 0; i < semaphore_sets; i++)
		CHECK(semctl(sets[i], 0, IPC_RMID) == 0);
}

// ---- forks while a slot is being taken

enum { forks = 30 };

static _Atomic bool attached;

static void *fork_sleepers(void *argument)
{
	pid_t *children = argument;

	for (int i = 0; i < forks && !atomic_load(&attached); i++) {
		pid_t pid = fork();

		if (pid == 0) {
			alarm(60); // in case the test fails
			pause();
			_exit(1);
		}
		__atomic_store_n(&children[i], pid, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

// attach_and_fork takes a slot while another thread forks. Then the process dies.
static void attach_and_fork(pid_t *children)
{
	static struct vg_pages pages;
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, fork_sleepers, children) == 0);
	while (!__atomic_load_n(&children[0], __ATOMIC_SEQ_CST))
		continue;
	attach(&pages);
	atomic_store(&attached, true);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(test_reserve(&pages, 0, 100));
	_exit(0);
}

static void test_fork_while_a_slot_is_taken(void)
{
	pid_t *children = mmap(NULL, sizeof(pid_t[forks]), PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct vg_pages pages;

	CHECK(children != MAP_FAILED);
	attach_new(&pages, 1000);
	for (int i = 0; i < 40; i++) {
		int status;
		pid_t pid;

		memset(children, 0, sizeof(pid_t[forks]));
		pid = fork();
		if (pid == 0)
			attach_and_fork(children);
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK_EQUAL(status, 0);
		CHECK(!is_live(&pages, 1));
		for (int child = 0; child < forks && children[child]; child++)
			kill(children[child], SIGKILL);
		wait_until_unused(&pages);
	}
	vg_pages_close(&pages);
}

static void fork_within(void)
{
	static bool within;
	pid_t pid;

	if (within)
		return;
	within = true;
	pid = fork();
	if (pid == 0)
		_exit(0);
	CHECK(waitpid(pid, NULL, 0) == pid);
}

// A handler of a fork may fork, too, and both forks end. The program registers the handler before the
// first slot is taken, so that the handler runs after ours.
static void test_fork_within_a_fork(void)
{
	struct vg_pages pages;
	int status;
	pid_t pid;

	make_pages(1000);
	pid = fork();
	if (pid == 0) {
		alarm(30);
		CHECK(pthread_atfork(fork_within, NULL, NULL) == 0);
		attach(&pages);
		pid = fork();
		if (pid == 0)
			_exit(0);
		CHECK(waitpid(pid, NULL, 0) == pid);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK_EQUAL(status, 0);
}

static void test_exec_gives_back(void)
{
	struct vg_pages pages;
	pid_t holder;

	attach_new(&pages, 1000);
	holder = start_holder(become_sleep);
	wait_until_unused(&pages);
	finish(holder);
	vg_pages_close(&pages);
}

static void test_spawning_keeps_the_slot(void)
{
	struct vg_pages pages;
	struct vg_pages other;
	char *arguments[] = {"true", NULL};
	pid_t pid;

	attach_new(&pages, 1000);
	CHECK(test_reserve(&pages, 0, 100));
	CHECK(posix_spawnp(&pid, "true", NULL, NULL, arguments, environ) == 0);
	CHECK(waitpid(pid, NULL, 0) == pid);
	attach(&other);
	CHECK(other.slot != pages.slot);
	CHECK_EQUAL(used_after_reaping(&other), 100);
	vg_pages_close(&other);
	vg_pages_close(&pages);
}

int main(void)
{
	test_fork_within_a_fork(); // comes first
	test_killed_process_gives_back();
	test_forked_child_keeps_the_memory();
	test_forked_child_keeps_no_work();
	test_executed_child_keeps_nothing();
	test_slot_outlives_its_descriptors();
	test_process_that_ends_slowly();
	test_fork_while_a_slot_is_taken();
	test_exec_gives_back();
	test_spawning_keeps_the_slot();
	return 0;
}
