// SPDX-License-Identifier: Apache-2.0

// This test covers the slot that a process takes, its contents, and the behaviour without free
// slots.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/now.h"
#include "base/number.h"

#include "pages/dying.h"
#include "pages/limits.h"
#include "pages/usage.h"
#include "reserve.h"
#include "slots.h"

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
	CHECK(vg_limits_open(&more, dir, &error) == 0);
	CHECK(vg_slot_take(&more, &error) == -1);
	vg_pages_close(&pages[500]);
	CHECK(vg_slot_take(&more, &error) == 0);
	CHECK_EQUAL(more.slot, 500);
	for (uint32_t i = 0; i < VG_MAX_SLOTS; i++)
		vg_pages_close(&pages[i]);
	vg_pages_close(&more);
}

// fill_up fills the file system of the current directory.
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

// on_a_full_disk has a process take the last slots with room on the disk.
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
		CHECK(vg_limits_open(&more, dir, &error) == 0);
		if (vg_slot_take(&more, &error))
			break;
	}
	CHECK(strstr(error.text, "cannot be written"));
	// A process with a slot continues.
	CHECK(test_reserve(&pages, 0, 100));
}

static void test_full_disk_refuses_and_kills_nobody(void)
{
	snprintf(dir, sizeof dir, "%s", test_dir());
	in_child(on_a_full_disk);
}

// The counts of ended processes are kept when their slots are emptied or reused.
static void test_the_dead_are_counted(void)
{
	struct vg_pages pages, next;

	attach_new(&pages, 1000);
	leave(100);
	CHECK_EQUAL(used_after_reaping(&pages), 0);
	leave(0);
	pages.usage->slots[1].pid = 0; // so that the new process first tries the dead process's slot
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

	attach_new(&other, 1000);
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

	attach_new(&other, 1000);
	attach(&pages);
	leave(0);
	vg_slots_live(&pages, live);
	CHECK(live[0] && live[1] && !live[2]);
	vg_pages_close(&other);
	vg_slots_live(&pages, live);
	CHECK(!live[0] && live[1] && !live[2]);
	vg_pages_close(&pages);
}

// Dead processes are reaped in any slot.
static void test_reaping_begins_with_the_first_slot(void)
{
	struct vg_pages pages, first;

	attach_new(&first, 1000);
	CHECK(test_reserve(&first, 0, 100));
	attach(&pages);
	CHECK_EQUAL(pages.slot, 1);
	CHECK_EQUAL(used_after_reaping(&pages), 100);
	vg_pages_close(&first);
	CHECK_EQUAL(used_after_reaping(&pages), 0);
	vg_pages_close(&pages);
}

// A thread can still be cancelled after its work with slots.
static void test_threads_can_be_cancelled(void)
{
	static bool live[VG_MAX_SLOTS];
	struct vg_pages pages;
	int state;

	make_pages(1000);
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL) == 0);
	attach(&pages);
	vg_slots_reap(&pages, 0);
	vg_slots_settle(&pages, 0);
	vg_slots_live(&pages, live);
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state) == 0);
	CHECK_EQUAL(state, PTHREAD_CANCEL_ENABLE);
	vg_pages_close(&pages);
}

// A dead process keeps no single byte, also of an unfinished claim.
static void test_reaping_of_a_byte(void)
{
	for (int pending = 0; pending < 2; pending++) {
		struct vg_pages pages, first;
		struct vg_slot_device *held;

		make_pages(1000);
		attach(&first);
		attach(&pages);
		held = &pages.usage->slots[first.slot].devices[0];
		*(pending ? &held->pending : &held->used) = 1;
		vg_pages_close(&first);
		vg_slots_reap(&pages, 0);
		CHECK_EQUAL(held->used + held->pending, 0);
		vg_pages_close(&pages);
	}
}

static const uint64_t ms = 1000000;

// leave_unmeasured leaves a dead process's slot with work unmeasured for this long.
static void leave_unmeasured(struct vg_pages *pages, uint64_t ago)
{
	attach(pages);
	pages->usage->slots[pages->slot].devices[0].unmeasured_ns = vg_now() - ago;
	pages->usage->slots[pages->slot].pid = INT32_MAX; // of no process
	vg_pages_close(pages);
}

// charged returns the container's total charge in ns. A slow machine adds time.
static uint64_t charged(const struct vg_pages *pages)
{
	return vg_load(&pages->usage->header.devices[0].spent_ns);
}

// A dead process's unmeasured work is charged when the death is detected. The charge is the time
// since the launch, for one second at most. Work of several processes at the same time is charged
// once.
static void test_unmeasured_work_is_charged(void)
{
	struct vg_pages pages, dead;
	uint64_t spent;

	attach_new(&pages, 1000);
	leave_unmeasured(&dead, 30 * ms);
	CHECK_EQUAL(charged(&pages), 0);
	vg_slots_settle(&pages, 0);
	CHECK(charged(&pages) >= 30 * ms && charged(&pages) < 500 * ms);
	CHECK_EQUAL(pages.usage->header.devices[0].retired_gpu_time_ns, charged(&pages));
	leave_unmeasured(&dead, 25 * ms); // parallel to the work above
	vg_slots_settle(&pages, 0);
	CHECK(charged(&pages) < 500 * ms);
	vg_slots_settle(&pages, 0); // no work is left
	spent = charged(&pages);
	leave_unmeasured(&dead, 5 * ms);
	pages.usage->slots[dead.slot].pid = (uint32_t)getpid(); // this process, before execve
	vg_slots_settle(&pages, 0);
	CHECK(charged(&pages) > spent);
	vg_pages_close(&pages);

	make_pages(1000);
	leave_unmeasured(&dead, 5000 * ms);
	attach(&pages); // takes the slot
	CHECK_EQUAL(pages.slot, 0);
	CHECK_EQUAL(charged(&pages), 1000 * ms);
	vg_pages_close(&pages);
}

// A live process's unmeasured work is not charged.
static void test_unmeasured_work_of_the_living(void)
{
	struct vg_pages pages, other;

	attach_new(&other, 1000);
	other.usage->slots[0].devices[0].unmeasured_ns = vg_now() - 30 * ms;
	attach(&pages);
	vg_slots_settle(&pages, 0);
	CHECK_EQUAL(charged(&pages), 0);
	vg_pages_close(&other);
	vg_pages_close(&pages);
}

enum { many = 1000 };

// sign_many makes this many slots look taken by processes with this pid.
static void sign_many(struct vg_pages *pages, uint32_t pid)
{
	CHECK_EQUAL(vg_slot_map(pages, &(struct vg_error){0}), 0);
	pages->usage->header.high_water = many;
	for (uint32_t i = 0; i < many; i++)
		pages->usage->slots[i].pid = pid;
}

// A free slot among many used slots is reused. If live processes signed all tried slots, the first
// unused slot is taken.
static void test_slots_are_taken_again(void)
{
	static struct vg_pages pages;
	struct vg_error error;

	for (int signed_by_living = 0; signed_by_living < 2; signed_by_living++) {
		make_pages(1000);
		memset(&pages, 0, sizeof pages);
		CHECK(vg_limits_open(&pages, dir, &error) == 0);
		sign_many(&pages, signed_by_living ? (uint32_t)getppid() : 0);
		CHECK(vg_slot_take(&pages, &error) == 0);
		if (signed_by_living)
			CHECK_EQUAL(pages.slot, many);
		else
			CHECK(pages.slot < many);
		vg_pages_close(&pages);
	}
}

// ---- a slot whose process has begun to exit

static void *wait_for_the_end(void *unused)
{
	pause();
	return unused;
}

// begin_to_exit ends the first thread of a new process, but not the second thread.
static void begin_to_exit(void)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, wait_for_the_end, NULL) == 0);
	pthread_exit(NULL);
}

// A process that searches all slots does not take the slot of an exiting process, which keeps its
// contents.
static void test_a_slot_of_an_exiting_process(void)
{
	static bool live[VG_MAX_SLOTS];
	static struct vg_pages pages, next;
	pid_t exiting = fork();

	CHECK(exiting >= 0);
	if (exiting == 0)
		begin_to_exit();
	while (!vg_dying((uint32_t)exiting))
		usleep(1000);
	attach_new(&pages, 1000);
	leave(100);
	pages.usage->header.high_water = VG_MAX_SLOTS;
	for (uint32_t i = 2; i < VG_MAX_SLOTS; i++)
		pages.usage->slots[i].pid = (uint32_t)getppid();
	pages.usage->slots[1].pid = (uint32_t)exiting;
	attach(&next);
	CHECK_EQUAL(next.slot, 2);
	vg_slots_live(&pages, live);
	CHECK(live[0] && !live[1] && live[2]);
	CHECK(!vg_slots_reap(&pages, 0));
	CHECK_EQUAL(vg_usage_memory(&pages, 0), 100);
	kill(exiting, SIGKILL);
	CHECK(waitpid(exiting, NULL, 0) == exiting);
	CHECK(vg_slots_reap(&pages, 0));
	CHECK_EQUAL(vg_usage_memory(&pages, 0), 0);
	vg_pages_close(&next);
	vg_pages_close(&pages);
}

// ---- the first process of a container

// take_again takes slots as process 1 of a pid namespace. The process must not wait because a
// stored pid equals its own pid.
static void take_again(void)
{
	static struct vg_pages pages;
	uint64_t least = UINT64_MAX;

	CHECK_EQUAL(getpid(), 1);
	for (int i = 0; i < 5; i++) {
		uint64_t begin = vg_now();

		attach(&pages);
		least = vg_min(least, vg_now() - begin);
		vg_pages_close(&pages);
	}
	CHECK(least < 100 * ms);
}

static void in_a_pid_namespace(void)
{
	CHECK(unshare(geteuid() == 0 ? CLONE_NEWPID : CLONE_NEWUSER | CLONE_NEWPID) == 0);
	in_child(take_again);
}

// No process waits for a slot after the last slot was taken.
static void test_the_first_process(void)
{
	make_pages(1000);
	in_child(in_a_pid_namespace);
}

// The child of a fork takes a slot with the page of its parent. The child holds no memory yet.
static void test_own_memory_begins_at_zero(void)
{
	struct vg_pages pages;
	struct vg_error error;

	attach_new(&pages, 1000);
	for (unsigned i = 0; i < VG_MAX_DEVICES; i++)
		atomic_store(&pages.own[i], 100);
	CHECK(vg_slot_take(&pages, &error) == 0);
	for (unsigned i = 0; i < VG_MAX_DEVICES; i++)
		CHECK_EQUAL(atomic_load(&pages.own[i]), 0);
	vg_pages_close(&pages);
}

int main(void)
{
	test_the_dead_are_counted();
	test_slots_are_signed();
	test_own_memory_begins_at_zero();
	test_who_lives();
	test_reaping_begins_with_the_first_slot();
	test_threads_can_be_cancelled();
	test_reaping_of_a_byte();
	test_unmeasured_work_is_charged();
	test_unmeasured_work_of_the_living();
	test_slots_are_taken_again();
	test_a_slot_of_an_exiting_process();
	test_the_first_process();
	test_full_disk_refuses_and_kills_nobody();
	test_slots_run_out_and_come_back();
	return 0;
}
