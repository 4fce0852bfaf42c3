// SPDX-License-Identifier: Apache-2.0

// This test covers every order in which processes can take, reap and leave slots. Each lock and
// each write of slot.c is a step (explorer.h). The locks and the page are real. A dying process
// first drops its lock, with its address space, and then its GPU memory.

#define _GNU_SOURCE
#include "pages/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "check.h"
#include "explorer.h"
#include "fixture.h"
#include "pages/dying.h"
#include "pages/limits.h"
#include "pages/usage.h"

static void step(void);
static int opened(int fd);
static int closed(int fd);
static int process_number(void);
static int ask_for(int number);
static bool is_dying(uint32_t number);

#define open(path, flags) (step(), opened(open(path, flags)))
#define vg_usage_open(pages, error) (step(), opened(vg_usage_open(pages, error)))
#define close(fd) (step(), closed(fd))
#define fcntl(fd, command, lock) (step(), fcntl(fd, command, lock))
#define getpid() process_number()
#define kill(number, signal) (step(), ask_for(number))
#define vg_dying(number) (step(), is_dying(number))
#define vg_slots_in_use(pages) (step(), vg_slots_in_use(pages))
#define vg_add(field, value) (step(), vg_add(field, value))
#define vg_store(field, value) (step(), vg_store(field, value))
#define __atomic_compare_exchange_n(at, seen, value, weak, one, other) \
	(step(), __atomic_compare_exchange_n(at, seen, value, weak, one, other))
#define __atomic_store_n(at, value, order) (step(), __atomic_store_n(at, value, order))
#include "pages/slot.c"
#undef open
#undef vg_usage_open
#undef close
#undef fcntl
#undef getpid
#undef kill
#undef vg_dying
#undef vg_slots_in_use
#undef vg_add
#undef vg_store
#undef __atomic_compare_exchange_n
#undef __atomic_store_n

enum {
	first_number = 1000,  // of a process
	ended_number = 999,   // of a process that ended earlier
	held = 100,           // bytes that a process with a slot holds
	most_slots = explorer_most_processes + 1,
	no_descriptor = -1,
};

enum life { ALIVE, DYING, GONE };

struct process {
	struct vg_pages pages;
	enum life life;
	bool has_slot; // with memory
	int descriptor;
	int taking; // vg_taking of this process
};

static struct process processes[explorer_most_processes];
static struct vg_pages page; // of the test itself
static void (*work)(struct process *process);
static int deaths;           // deaths in the middle of work that this run may still make
static bool one_ended;       // an earlier process has left its slot with its contents
static uint64_t launches;    // in a run

static struct process *self(void)
{
	return explorer_self() < 0 ? NULL : &processes[explorer_self()];
}

static struct vg_slot *slot_of(const struct process *process)
{
	return &page.usage->slots[process->pages.slot];
}

static bool holds(const struct process *process)
{
	return process->has_slot && process->life != GONE;
}

static void check_holds(const struct process *process)
{
	const struct vg_slot *slot = slot_of(process);

	CHECK_EQUAL(slot->devices[0].used, held);
	CHECK_EQUAL(slot->pid, first_number + (process - processes));
	CHECK(vg_slots_in_use(&page) > (uint32_t)process->pages.slot); // other processes count the slot
}

// die ends the running process. Other processes cannot get the process's memory until the process
// is gone.
static void die(struct process *process)
{
	process->life = DYING;
	if (process->descriptor != no_descriptor)
		close(process->descriptor);
	process->descriptor = no_descriptor;
	if (process->pages.usage)
		munmap(process->pages.usage, sizeof *process->pages.usage);
	process->pages.usage = NULL;
	if (process->has_slot) {
		explorer_step();
		check_holds(process);
	}
	process->life = GONE;
	explorer_end();
}

static void step(void)
{
	struct process *process = self();

	if (!process)
		return;
	explorer_step();
	if (holds(process))
		check_holds(process);
	if (deaths == 0 || explorer_choose(2) == 0)
		return;
	deaths--;
	die(process);
}

static int opened(int fd)
{
	if (self())
		self()->descriptor = fd;
	return fd;
}

static int closed(int fd)
{
	if (self())
		self()->descriptor = no_descriptor;
	return close(fd);
}

static int process_number(void)
{
	return first_number + explorer_self();
}

static int ask_for(int number)
{
	if (number >= first_number && processes[number - first_number].life != GONE)
		return 0;
	errno = ESRCH;
	return -1;
}

static bool is_dying(uint32_t number)
{
	return number >= first_number && processes[number - first_number].life == DYING;
}

static void switches(int from, int to)
{
	processes[from].taking = atomic_load(&vg_taking);
	atomic_store(&vg_taking, processes[to].taking);
}

// ---- actions of processes

static void take(struct process *process)
{
	struct vg_slot_device *own;
	struct vg_error error;

	CHECK_EQUAL(vg_slot_take(&process->pages, &error), 0);
	for (int i = 0; i < explorer_most_processes; i++)
		CHECK(!holds(&processes[i]) || processes[i].pages.slot != process->pages.slot);
	own = &slot_of(process)->devices[0];
	CHECK_EQUAL(own->used, 0);
	CHECK_EQUAL(own->launches, 0);
	own->used = held;
	own->launches = 1;
	launches++;
	process->has_slot = true;
	check_holds(process);
}

static void take_and_die(struct process *process)
{
	take(process);
	step();
	die(process);
}

static void take_and_reap(struct process *process)
{
	take(process);
	vg_slots_reap(&process->pages, 0);
	die(process);
}

// take_and_look checks that a process with a slot counts as alive while it has the slot.
static void take_and_look(struct process *process)
{
	static bool live[explorer_most_processes][VG_MAX_SLOTS];
	bool *own = live[process - processes];
	bool had[explorer_most_processes];

	take(process);
	for (int i = 0; i < explorer_most_processes; i++)
		had[i] = holds(&processes[i]) && processes[i].life == ALIVE;
	vg_slots_live(&process->pages, own);
	for (int i = 0; i < explorer_most_processes; i++)
		CHECK(!had[i] || processes[i].life != ALIVE || own[processes[i].pages.slot]);
	die(process);
}

// ---- runs

static void begin(int at)
{
	struct process *process = &processes[at];
	struct vg_usage_header *header = &page.usage->header;

	CHECK(!process->pages.usage);
	process->pages.slot = vg_no_slot;
	process->life = ALIVE;
	process->has_slot = false;
	process->descriptor = no_descriptor;
	process->taking = 0;
	if (at > 0)
		return;
	memset(page.usage->slots, 0, most_slots * sizeof *page.usage->slots);
	atomic_store(&vg_taking, 0);
	launches = one_ended;
	header->high_water = one_ended;
	header->devices[0].retired_launches = 0;
	page.usage->slots[0].pid = one_ended ? ended_number : 0;
	page.usage->slots[0].devices[0].used = one_ended ? held : 0;
	page.usage->slots[0].devices[0].launches = one_ended;
}

static void body(int at)
{
	work(&processes[at]);
}

static uint64_t launches_on_page(void)
{
	uint64_t sum = page.usage->header.devices[0].retired_launches;

	for (int i = 0; i < most_slots; i++)
		sum += page.usage->slots[i].devices[0].launches;
	return sum;
}

// all_leave checks that a later process finds no held memory, and all launches counted.
static void all_leave(void)
{
	CHECK(vg_slots_reap(&page, 0));
	CHECK_EQUAL(vg_usage_memory(&page, 0), 0);
	CHECK_EQUAL(launches_on_page(), launches);
}

// some_died checks that a later process finds no held memory. The launches of a process that dies
// while it empties a slot may be counted twice.
static void some_died(void)
{
	CHECK(vg_slots_reap(&page, 0));
	CHECK_EQUAL(vg_usage_memory(&page, 0), 0);
	CHECK(launches_on_page() >= launches);
}

static int deaths_of_each_run;

static void begin_with_deaths(int at)
{
	deaths = deaths_of_each_run;
	begin(at);
}

static void try_orders(int wanted, int most_switches, int most_deaths, void (*what)(struct process *process))
{
	work = what;
	deaths_of_each_run = most_deaths;
	for (int i = 0; i < 2; i++) {
		one_ended = i;
		explore(&(struct exploration){.processes = wanted, .most_switches = most_switches,
					      .begin = begin_with_deaths, .body = body, .switches = switches,
					      .ended = most_deaths ? some_died : all_leave});
	}
}

int main(void)
{
	struct vg_limits_device device = test_device(1, 1000);
	const char *dir = test_dir();
	struct vg_error error;

	CHECK(test_pages_make(dir, &device, 1) == 0);
	CHECK(vg_limits_open(&page, dir, &error) == 0);
	CHECK(vg_slot_map(&page, &error) == 0);
	for (int i = 0; i < explorer_most_processes; i++)
		CHECK(vg_limits_open(&processes[i].pages, dir, &error) == 0);
	try_orders(2, 4, 0, take_and_die);
	try_orders(3, 2, 0, take_and_die);
	try_orders(2, 3, 0, take_and_reap);
	try_orders(2, 3, 0, take_and_look);
	try_orders(2, 2, 1, take_and_reap);
	return 0;
}
