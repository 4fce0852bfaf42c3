// SPDX-License-Identifier: Apache-2.0

// A slot belongs to a process for exactly as long as that lives.

#define _GNU_SOURCE
#include "slot.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "fixture.h"
#include "reserve.h"

extern char **environ;

static char dir[256];

static void make_pages(uint64_t limit)
{
	struct vg_limits_device device = test_device(1, limit);

	snprintf(dir, sizeof dir, "%s", test_dir());
	CHECK(test_pages_make(dir, &device, 1) == 0);
}

static void attach(struct vg_pages *pages)
{
	struct vg_error error;

	memset(pages, 0, sizeof *pages);
	CHECK(vg_pages_open(pages, dir, &error) == 0);
	CHECK(vg_slot_take(pages, &error) == 0);
}

// start_holder starts a process that takes a slot with 100 bytes, does what
// `then` says, tells so through a pipe, and waits to be killed.
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
		CHECK(vg_reserve(&pages, 0, 100));
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

static uint64_t used_after_reaping(struct vg_pages *pages)
{
	vg_slots_reap(pages, 0);
	return vg_memory_used(pages, 0);
}

static void test_killed_process_gives_back(void)
{
	struct vg_pages pages;
	pid_t holder;

	make_pages(1000);
	attach(&pages);
	holder = start_holder(NULL);
	CHECK_EQUAL(used_after_reaping(&pages), 100);
	CHECK(!vg_reserve(&pages, 0, 901));
	finish(holder);
	// Without any waiting, by whoever needs it.
	CHECK(vg_reserve(&pages, 0, 1000));
	CHECK_EQUAL(vg_memory_used(&pages, 0), 1000);
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

static void fork_sleeper(void)
{
	pid_t pid = fork();

	if (pid == 0)
		for (;;)
			pause();
	__atomic_store_n(shared_child, pid, __ATOMIC_SEQ_CST);
}

static void test_forked_child_does_not_keep_the_slot(void)
{
	struct vg_pages pages;
	pid_t holder;

	shared_child = new_shared_child();
	make_pages(1000);
	attach(&pages);
	holder = start_holder(fork_sleeper);
	while (!__atomic_load_n(shared_child, __ATOMIC_SEQ_CST))
		usleep(1000);
	finish(holder);
	CHECK_EQUAL(used_after_reaping(&pages), 0);
	kill(*shared_child, SIGKILL);
	vg_pages_close(&pages);
}

static void close_everything(void)
{
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	// Opening and closing the file again drops POSIX locks, but not these.
	CHECK(chdir(dir) == 0);
	close(open("usage", O_RDWR));
	__atomic_store_n(shared_child, 1, __ATOMIC_SEQ_CST);
}

static void test_slot_outlives_its_descriptors(void)
{
	struct vg_pages pages;
	pid_t holder;

	shared_child = new_shared_child();
	make_pages(1000);
	attach(&pages);
	holder = start_holder(close_everything);
	while (!__atomic_load_n(shared_child, __ATOMIC_SEQ_CST))
		usleep(1000);
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

static int open_driver(void)
{
	char path[512];
	int fd;

	snprintf(path, sizeof path, "%s/driver", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	return fd;
}

// undo_slowly is a thread whose end takes milliseconds, after it has left the address
// space and before it leaves the descriptors: so long the kernel has to undo.
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

// hold_the_driver holds what lives as long as the process's descriptors, as the
// driver's memory does.
static void hold_the_driver(void)
{
	struct flock lock = whole(F_WRLCK);
	pthread_t thread;

	CHECK(fcntl(open_driver(), F_SETLK, &lock) == 0);
	CHECK(pthread_create(&thread, NULL, undo_slowly, NULL) == 0);
}

static bool is_live(const struct vg_pages *pages, uint32_t slot)
{
	static bool live[VG_MAX_SLOTS];

	vg_slots_live(pages, live);
	return live[slot];
}

// What a process holds is granted to others when it is gone, and not when only its
// slot is.
static void end_slowly(void)
{
	struct flock lock = whole(F_WRLCK);
	struct vg_pages pages;
	pid_t holder;
	int driver;

	shared_child = new_shared_child();
	make_pages(1000);
	attach(&pages);
	holder = start_holder(hold_the_driver);
	while (!__atomic_load_n(shared_child, __ATOMIC_SEQ_CST))
		usleep(1000);
	driver = open_driver();
	kill(holder, SIGKILL);
	while (is_live(&pages, 1))
		continue;
	CHECK(vg_reserve(&pages, 0, 1000));
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
			alarm(60); // should the test fail
			pause();
			_exit(1);
		}
		__atomic_store_n(&children[i], pid, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

// attach_and_fork takes a slot while another thread forks, and dies.
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
	CHECK(vg_reserve(&pages, 0, 100));
	_exit(0);
}

static void test_fork_while_a_slot_is_taken(void)
{
	pid_t *children = mmap(NULL, sizeof(pid_t[forks]), PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct vg_pages pages;

	CHECK(children != MAP_FAILED);
	make_pages(1000);
	attach(&pages);
	for (int i = 0; i < 40; i++) {
		int status;
		pid_t pid;

		memset(children, 0, sizeof(pid_t[forks]));
		pid = fork();
		if (pid == 0)
			attach_and_fork(children);
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK_EQUAL(status, 0);
		CHECK_EQUAL(used_after_reaping(&pages), 0);
		for (int child = 0; child < forks && children[child]; child++)
			kill(children[child], SIGKILL);
	}
	vg_pages_close(&pages);
}

static void become_sleep(void)
{
	char *arguments[] = {"sleep", "1000", NULL};

	execvp(arguments[0], arguments);
	abort();
}

static void test_exec_gives_back(void)
{
	struct vg_pages pages;
	pid_t holder;

	make_pages(1000);
	attach(&pages);
	holder = start_holder(become_sleep);
	for (int i = 0; i < 2000 && used_after_reaping(&pages); i++)
		usleep(1000);
	CHECK_EQUAL(vg_memory_used(&pages, 0), 0);
	finish(holder);
	vg_pages_close(&pages);
}

static void test_spawning_keeps_the_slot(void)
{
	struct vg_pages pages;
	struct vg_pages other;
	char *arguments[] = {"true", NULL};
	pid_t pid;

	make_pages(1000);
	attach(&pages);
	CHECK(vg_reserve(&pages, 0, 100));
	CHECK(posix_spawnp(&pid, "true", NULL, NULL, arguments, environ) == 0);
	CHECK(waitpid(pid, NULL, 0) == pid);
	attach(&other);
	CHECK(other.slot != pages.slot);
	CHECK_EQUAL(used_after_reaping(&other), 100);
	vg_pages_close(&other);
	vg_pages_close(&pages);
}

static void test_slots_run_out_and_come_back(void)
{
	static struct vg_pages pages[VG_MAX_SLOTS];
	static struct vg_pages more;
	struct vg_error error;

	make_pages(1000);
	for (uint32_t i = 0; i < VG_MAX_SLOTS; i++) {
		attach(&pages[i]);
		CHECK_EQUAL(pages[i].slot, i);
	}
	CHECK(vg_pages_open(&more, dir, &error) == 0);
	CHECK(vg_slot_take(&more, &error) == -1);
	vg_pages_close(&pages[500]);
	CHECK(vg_slot_take(&more, &error) == 0);
	CHECK_EQUAL(more.slot, 500);
	for (uint32_t i = 0; i < VG_MAX_SLOTS; i++)
		vg_pages_close(&pages[i]);
	vg_pages_close(&more);
}

// in_child runs a part of a test in a process of its own.
static void in_child(void (*what)(void))
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		what();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK_EQUAL(status, 0);
}

// fill_up leaves no room in the file system of the current directory.
static void fill_up(void)
{
	static const char page[4096];
	int fd = open("filler", O_CREAT | O_WRONLY, 0600);

	CHECK(fd >= 0);
	while (write(fd, page, sizeof page) > 0)
		continue;
	CHECK_EQUAL(errno, ENOSPC);
	close(fd);
}

// on_a_full_disk has a process take the last slots for which there is room.
static void on_a_full_disk(void)
{
	static struct vg_pages pages, more;
	struct vg_limits_device device = test_device(1, 1000);
	struct vg_error error;

	CHECK(unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS) == 0);
	CHECK(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	CHECK(mount("none", dir, "tmpfs", 0, "size=64k") == 0);
	CHECK(chdir(dir) == 0);
	CHECK(test_pages_make(dir, &device, 1) == 0);
	attach(&pages);
	fill_up();
	for (int i = 0; i < 3; i++) {
		memset(&more, 0, sizeof more);
		CHECK(vg_pages_open(&more, dir, &error) == 0);
		if (vg_slot_take(&more, &error))
			break;
	}
	CHECK(strstr(error.text, "cannot be written"));
	// Who has a slot goes on.
	CHECK(vg_reserve(&pages, 0, 100));
}

static void test_full_disk_refuses_and_kills_nobody(void)
{
	snprintf(dir, sizeof dir, "%s", test_dir());
	in_child(on_a_full_disk);
}

// leave ends like a process that is killed: what its slot holds stays in it.
static void leave(uint64_t used)
{
	struct vg_pages pages;
	struct vg_slot_device *devices;

	attach(&pages);
	devices = pages.usage->slots[pages.slot].devices;
	vg_store(&devices[0].used, used);
	for (unsigned i = 0; i < VG_MAX_DEVICES; i++) {
		vg_store(&devices[i].gpu_time_ns, 100 + i);
		vg_store(&devices[i].wait_ns, 200 + i);
		vg_store(&devices[i].launches, 300 + i);
	}
	vg_pages_close(&pages);
}

// What ended processes did stays counted, when their slots are emptied and when they are taken.
static void test_the_dead_are_counted(void)
{
	struct vg_pages pages, next;

	make_pages(1000);
	attach(&pages);
	leave(100);
	CHECK_EQUAL(used_after_reaping(&pages), 0);
	leave(0);
	pages.usage->slots[1].pid = 0; // or its slot would not be the first to be tried
	attach(&next);
	CHECK_EQUAL(next.slot, 1);
	for (unsigned i = 0; i < VG_MAX_DEVICES; i++) {
		const struct vg_container_device *sum = &pages.usage->header.devices[i];

		CHECK_EQUAL(sum->retired_gpu_time_ns, 2 * (100 + i));
		CHECK_EQUAL(sum->retired_wait_ns, 2 * (200 + i));
		CHECK_EQUAL(sum->retired_launches, 2 * (300 + i));
		CHECK_EQUAL(vg_slot_device(&next, 1, i)->gpu_time_ns, 0);
	}
	vg_pages_close(&next);
	vg_pages_close(&pages);
}

// A slot contains its owner's number and name from its first moment.
static void test_slots_are_signed(void)
{
	struct vg_pages pages, other;
	const struct vg_slot *slot;
	struct timespec before, after;
	char name[16] = "";

	make_pages(1000);
	attach(&other);
	clock_gettime(CLOCK_BOOTTIME, &before);
	attach(&pages);
	clock_gettime(CLOCK_BOOTTIME, &after);
	CHECK_EQUAL(pages.slot, 1);
	CHECK_EQUAL(pages.usage->header.high_water, 2);
	slot = &pages.usage->slots[1];
	CHECK_EQUAL(slot->pid, getpid());
	CHECK(slot->attached_ns >= (uint64_t)before.tv_sec * 1000000000u + (uint64_t)before.tv_nsec);
	CHECK(slot->attached_ns <= (uint64_t)after.tv_sec * 1000000000u + (uint64_t)after.tv_nsec);
	prctl(PR_GET_NAME, name);
	CHECK(!memcmp(slot->name, name, sizeof name));
	vg_pages_close(&pages);
	vg_pages_close(&other);
}

static void test_who_lives(void)
{
	static bool live[VG_MAX_SLOTS];
	struct vg_pages pages, other;

	make_pages(1000);
	attach(&other);
	attach(&pages);
	leave(0);
	vg_slots_live(&pages, live);
	CHECK(live[0] && live[1] && !live[2]);
	vg_pages_close(&other);
	vg_slots_live(&pages, live);
	CHECK(!live[0] && live[1] && !live[2]);
	vg_pages_close(&pages);
}

// The dead are reaped in whichever slot they were.
static void test_reaping_begins_with_the_first_slot(void)
{
	struct vg_pages pages, first;

	make_pages(1000);
	attach(&first);
	CHECK(vg_reserve(&first, 0, 100));
	attach(&pages);
	CHECK_EQUAL(pages.slot, 1);
	CHECK_EQUAL(used_after_reaping(&pages), 100);
	vg_pages_close(&first);
	CHECK_EQUAL(used_after_reaping(&pages), 0);
	vg_pages_close(&pages);
}

enum { many = 1000 };

// sign_many makes the page look as if so many slots had been taken, by processes with this number.
static void sign_many(struct vg_pages *pages, uint32_t pid)
{
	CHECK_EQUAL(vg_usage_map(pages, &(struct vg_error){0}), 0);
	pages->usage->header.high_water = many;
	for (uint32_t i = 0; i < many; i++)
		pages->usage->slots[i].pid = pid;
}

// Of many slots that were taken before, one that is free is taken again. Where those that are
// tried are signed by processes that live, it is the first that never was.
static void test_slots_are_taken_again(void)
{
	static struct vg_pages pages;
	struct vg_error error;

	for (int signed_by_living = 0; signed_by_living < 2; signed_by_living++) {
		make_pages(1000);
		memset(&pages, 0, sizeof pages);
		CHECK(vg_pages_open(&pages, dir, &error) == 0);
		sign_many(&pages, signed_by_living ? (uint32_t)getpid() : 0);
		CHECK(vg_slot_take(&pages, &error) == 0);
		if (signed_by_living)
			CHECK_EQUAL(pages.slot, many);
		else
			CHECK(pages.slot < many);
		vg_pages_close(&pages);
	}
}

// map_without_room asks for a slot where the page cannot be mapped.
static void map_without_room(void)
{
	static struct vg_pages pages;
	struct vg_error error;
	struct rlimit before;

	CHECK(vg_pages_open(&pages, dir, &error) == 0);
	CHECK(getrlimit(RLIMIT_AS, &before) == 0);
	CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){1, before.rlim_max}) == 0);
	CHECK_EQUAL(vg_slot_take(&pages, &error), -1);
	CHECK(strstr(error.text, "cannot map"));
	CHECK_EQUAL(vg_usage_map(&pages, &error), -1);
	CHECK(!pages.usage);
	CHECK(setrlimit(RLIMIT_AS, &before) == 0);
	CHECK_EQUAL(vg_slot_take(&pages, &error), 0);
}

static void test_page_that_cannot_be_mapped(void)
{
	make_pages(1000);
	in_child(map_without_room);
}

// A program may have closed its standard input: then the page's descriptor is 0, and is closed.
static void look_without_input(void)
{
	static bool live[VG_MAX_SLOTS];
	static struct vg_pages pages;

	close(0);
	attach(&pages);
	CHECK_EQUAL(fcntl(0, F_GETFD), -1);
	vg_slots_live(&pages, live);
	CHECK_EQUAL(fcntl(0, F_GETFD), -1);
	vg_slots_reap(&pages, 0);
	CHECK_EQUAL(fcntl(0, F_GETFD), -1);
}

static void test_descriptors_are_closed(void)
{
	make_pages(1000);
	in_child(look_without_input);
}

// A file that stands in place of the page has locks of its own: by those nobody is taken for dead,
// nor by those of another file that the process has open.
static void replace_the_usage_page(void)
{
	static bool live[VG_MAX_SLOTS];
	struct vg_pages pages;
	char replaced[sizeof pages.usage_path + 4];
	int fd;

	close(0);
	CHECK_EQUAL(open_driver(), 0);
	attach(&pages);
	leave(100);
	snprintf(replaced, sizeof replaced, "%s.new", pages.usage_path);
	fd = open(replaced, O_RDWR | O_CREAT, 0600);
	CHECK(fd >= 0 && ftruncate(fd, sizeof *pages.usage) == 0 && close(fd) == 0);
	CHECK(rename(replaced, pages.usage_path) == 0);
	CHECK(vg_slots_reap(&pages, 0));
	CHECK_EQUAL(vg_memory_used(&pages, 0), 100);
	vg_slots_live(&pages, live);
	CHECK(live[0] && live[1]);
	CHECK(unlink(pages.usage_path) == 0);
	CHECK(vg_slots_reap(&pages, 0));
	CHECK_EQUAL(vg_memory_used(&pages, 0), 100);
	vg_slots_live(&pages, live);
	CHECK(live[0] && live[1]);
	vg_pages_close(&pages);
}

static void test_usage_page_that_was_replaced(void)
{
	make_pages(1000);
	in_child(replace_the_usage_page);
}

int main(void)
{
	test_the_dead_are_counted();
	test_slots_are_signed();
	test_who_lives();
	test_reaping_begins_with_the_first_slot();
	test_slots_are_taken_again();
	test_page_that_cannot_be_mapped();
	test_descriptors_are_closed();
	test_usage_page_that_was_replaced();
	test_full_disk_refuses_and_kills_nobody();
	test_killed_process_gives_back();
	test_forked_child_does_not_keep_the_slot();
	test_slot_outlives_its_descriptors();
	test_process_that_ends_slowly();
	test_fork_while_a_slot_is_taken();
	test_exec_gives_back();
	test_spawning_keeps_the_slot();
	test_slots_run_out_and_come_back();
	return 0;
}
