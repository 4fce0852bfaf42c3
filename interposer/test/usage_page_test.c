// SPDX-License-Identifier: Apache-2.0

// This test covers usage pages that cannot be mapped, that are replaced, or that have another size.
// The test also covers the pages' descriptors.

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/now.h"
#include "slots.h"

// next_descriptor returns the number of the next file that the process opens.
static int next_descriptor(void)
{
	int fd = dup(STDERR_FILENO);

	CHECK(fd >= 0);
	close(fd);
	return fd;
}

// map_without_room requests a slot when the page cannot be mapped.
static void map_without_room(void)
{
	static struct vg_pages pages;
	struct vg_error error;
	struct rlimit before;
	int descriptor;

	CHECK(vg_limits_open(&pages, dir, &error) == 0);
	descriptor = next_descriptor();
	CHECK(getrlimit(RLIMIT_AS, &before) == 0);
	CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){1, before.rlim_max}) == 0);
	CHECK_EQUAL(vg_slot_take(&pages, &error), -1);
	CHECK(strstr(error.text, "cannot map"));
	CHECK_EQUAL(vg_slot_map(&pages, &error), -1);
	CHECK(!pages.usage);
	CHECK_EQUAL(next_descriptor(), descriptor);
	CHECK(setrlimit(RLIMIT_AS, &before) == 0);
	CHECK_EQUAL(vg_slot_take(&pages, &error), 0);
}

static void test_page_that_cannot_be_mapped(void)
{
	make_pages(1000);
	in_child(map_without_room);
}

// If a program has closed its standard input, the page's descriptor is 0, and is closed.
static void look_without_input(void)
{
	static bool live[VG_MAX_SLOTS];
	static struct vg_pages pages, dead[2];

	close(0);
	attach(&pages);
	CHECK_EQUAL(fcntl(0, F_GETFD), -1);
	vg_slots_live(&pages, live);
	CHECK_EQUAL(fcntl(0, F_GETFD), -1);
	vg_slots_reap(&pages, 0);
	CHECK_EQUAL(fcntl(0, F_GETFD), -1);
	attach(&dead[0]);
	attach(&dead[1]);
	for (int i = 0; i < 2; i++) {
		pages.usage->slots[dead[i].slot].devices[0].unmeasured_ns = vg_now();
		pages.usage->slots[dead[i].slot].pid = INT32_MAX; // of no process
		vg_pages_close(&dead[i]);
	}
	vg_slots_settle(&pages, 0);
	CHECK_EQUAL(fcntl(0, F_GETFD), -1);
	for (int i = 0; i < 2; i++)
		CHECK_EQUAL(pages.usage->slots[dead[i].slot].devices[0].unmeasured_ns, 0);
}

static void test_descriptors_are_closed(void)
{
	make_pages(1000);
	in_child(look_without_input);
}

// A file that replaces the page has separate locks. Neither these locks nor locks on another open
// file of the process may make a live process look dead.
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
	CHECK_EQUAL(vg_usage_memory(&pages, 0), 100);
	vg_slots_live(&pages, live);
	CHECK(live[0] && live[1]);
	CHECK(unlink(pages.usage_path) == 0);
	CHECK(vg_slots_reap(&pages, 0));
	CHECK_EQUAL(vg_usage_memory(&pages, 0), 100);
	vg_slots_live(&pages, live);
	CHECK(live[0] && live[1]);
	vg_pages_close(&pages);
}

// A page of another size may be from another release. No slot of the page counts as free.
static void test_usage_page_of_another_size(void)
{
	static bool live[VG_MAX_SLOTS];
	struct vg_pages pages;

	attach_new(&pages, 1000);
	leave(100);
	CHECK(truncate(pages.usage_path, sizeof *pages.usage + 1) == 0);
	CHECK_EQUAL(used_after_reaping(&pages), 100);
	vg_slots_live(&pages, live);
	CHECK(live[0] && live[1]);
	CHECK(truncate(pages.usage_path, sizeof *pages.usage) == 0);
	CHECK_EQUAL(used_after_reaping(&pages), 0);
	vg_slots_live(&pages, live);
	CHECK(live[0] && !live[1]);
	vg_pages_close(&pages);
}

static void test_usage_page_that_was_replaced(void)
{
	make_pages(1000);
	in_child(replace_the_usage_page);
}

int main(void)
{
	test_page_that_cannot_be_mapped();
	test_descriptors_are_closed();
	test_usage_page_that_was_replaced();
	test_usage_page_of_another_size();
	return 0;
}
