// SPDX-License-Identifier: Apache-2.0

// This test covers the lock order that debug builds assert. The test compiles the mutex as in a
// debug build.

#define _GNU_SOURCE
#ifndef VG_DEBUG
#define VG_DEBUG
#endif
#include "base/mutex.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/now.h"
#include "check.h"

#include "base/mutex.c"
#include "base/rank.c"

static struct vg_mutex first = VG_MUTEX(VG_RANK_AUDIT);
static struct vg_mutex second = VG_MUTEX(VG_RANK_POOLS);
static struct vg_mutex beside = VG_MUTEX(VG_RANK_POOLS);
static struct vg_mutex unranked;

static void in_order(void)
{
	vg_mutex_lock(&first);
	vg_mutex_lock(&second);
	vg_mutex_unlock(&first);
	vg_mutex_unlock(&second);
	vg_mutex_lock(&first); // the thread has released all locks
	vg_mutex_unlock(&first);
}

// A try_lock does not wait, and may therefore break the order.
static void tried(void)
{
	vg_mutex_lock(&second);
	CHECK(vg_mutex_try_lock(&first));
	vg_mutex_unlock(&first);
	CHECK(!vg_mutex_try_lock(&second));
	vg_mutex_unlock(&second);
}

static void *lock_first(void *unused)
{
	vg_mutex_lock(&first);
	vg_mutex_unlock(&first);
	return unused;
}

// Each thread has its own list of held locks.
static void in_another_thread(void)
{
	pthread_t thread;

	vg_mutex_lock(&second);
	CHECK_EQUAL(pthread_create(&thread, NULL, lock_first, NULL), 0);
	CHECK_EQUAL(pthread_join(thread, NULL), 0);
	vg_mutex_unlock(&second);
}

static void in_reverse(void)
{
	vg_mutex_lock(&second);
	vg_mutex_lock(&first);
}

static void in_reverse_until(void)
{
	vg_mutex_lock(&second);
	vg_mutex_lock_until(&first, vg_now() + 1000000);
}

static void of_one_rank(void)
{
	vg_mutex_lock(&second);
	vg_mutex_lock(&beside);
}

static void tried_before(void)
{
	CHECK(vg_mutex_try_lock(&second));
	vg_mutex_lock(&first);
}

static void without_a_rank(void)
{
	vg_mutex_lock(&unranked);
}

static void not_held(void)
{
	vg_mutex_unlock(&first);
}

// run runs a function in a child and returns the child's exit status. `text` receives its standard
// error.
static int run(void (*what)(void), char *text, size_t size)
{
	const struct rlimit none = {0, 0};
	size_t length = 0;
	ssize_t more;
	int ends[2];
	int status;
	pid_t child;

	CHECK_EQUAL(pipe(ends), 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		setrlimit(RLIMIT_CORE, &none);
		dup2(ends[1], STDERR_FILENO);
		what();
		_exit(0);
	}
	close(ends[1]);
	while (length < size - 1 && (more = read(ends[0], text + length, size - 1 - length)) > 0)
		length += (size_t)more;
	text[length] = '\0';
	close(ends[0]);
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	return status;
}

static void test_what_keeps_the_order(void)
{
	void (*const kept[])(void) = {in_order, tried, in_another_thread};

	for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
		char text[4096];
		int status = run(kept[i], text, sizeof text);

		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		CHECK_EQUAL(strlen(text), 0);
	}
}

static void test_what_breaks_it(void)
{
	static const struct {
		void (*what)(void);
		const char *message;
	} broken[] = {
		{in_reverse, "nri-vgpu: lock order: took vg_state.audit_mutex while holding vg_state.pool_mutex\n"},
		{in_reverse_until, "nri-vgpu: lock order: took vg_state.audit_mutex while holding vg_state.pool_mutex\n"},
		{of_one_rank, "nri-vgpu: lock order: took vg_state.pool_mutex while holding vg_state.pool_mutex\n"},
		{tried_before, "nri-vgpu: lock order: took vg_state.audit_mutex while holding vg_state.pool_mutex\n"},
		{without_a_rank, "nri-vgpu: lock order: took a mutex without a rank\n"},
		{not_held, "nri-vgpu: lock order: released, without holding it, vg_state.audit_mutex\n"},
	};

	for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
		char text[4096];
		int status = run(broken[i].what, text, sizeof text);

		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
		CHECK(strstr(text, broken[i].message) != NULL);
	}
}

int main(void)
{
	test_what_keeps_the_order();
	test_what_breaks_it();
	return 0;
}
