// SPDX-License-Identifier: Apache-2.0

#include "bucket.h"

#include "base/now.h"
#include "base/number.h"
#include "limits.h"

enum {
	vg_fill_step = 5000,                // least time between two refills
	// vg_fill_longest is the longest time that a refill counts. A longer time reaches the cap
	// anyway.
	vg_fill_longest = 1000000000,
	vg_target_ns = 400000,
};

// vg_deepest_debt bounds the values on the page, because a tenant can write arbitrary values. No
// arithmetic with these values may overflow or harm another tenant.
static const int64_t vg_deepest_debt = INT64_C(1) << 50;

static int64_t vg_clamp(int64_t balance, int64_t cap)
{
	if (balance > cap)
		return cap;
	return balance < -vg_deepest_debt ? -vg_deepest_debt : balance;
}

static int64_t vg_balance(const struct vg_container_device *device)
{
	return vg_clamp((int64_t)vg_load(&device->bucket_ns), vg_deepest_debt);
}

// vg_earn adds `ns` to the bucket, as far as the bucket has room.
static void vg_earn(struct vg_container_device *device, int64_t ns, int64_t cap)
{
	uint64_t seen = vg_load(&device->bucket_ns);
	int64_t balance;
	int64_t filled;

	do {
		balance = vg_clamp((int64_t)seen, vg_deepest_debt);
		// A balance above the cap was saved under a larger cap, and stays.
		filled = balance > cap ? balance : vg_clamp(balance + ns, cap);
		filled = vg_clamp(filled, vg_bucket_busy_cap);
	} while (!__atomic_compare_exchange_n(&device->bucket_ns, &seen, (uint64_t)filled, true,
					      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
}

int64_t vg_bucket_peek(const struct vg_container_device *device, uint64_t now, uint32_t ppm)
{
	uint64_t filled = vg_load(&device->bucket_filled_ns);
	int64_t balance = vg_clamp(vg_balance(device), vg_bucket_busy_cap);
	uint64_t since = filled < now ? vg_min(now - filled, vg_fill_longest) : 0;

	if (balance >= vg_bucket_idle_cap)
		return balance;
	return vg_clamp(balance + (int64_t)(since * ppm / VG_PPM), vg_bucket_idle_cap);
}

uint32_t vg_bucket_rate(uint32_t ppm, struct vg_lease lease, uint64_t now)
{
	return lease.ppm > ppm && lease.until > now ? lease.ppm : ppm;
}

int64_t vg_bucket_target(uint32_t ppm)
{
	return (int64_t)vg_min(vg_target_ns, (uint64_t)vg_bucket_look_ns * ppm / VG_PPM);
}

// vg_earn_lent adds the allowance of a lease between two refills. The lease may have begun after the
// first refill: a launch that waits for allowance refills the bucket at each look.
static void vg_earn_lent(struct vg_container_device *device, uint64_t from, uint64_t to,
			 uint32_t ppm, struct vg_lease lease)
{
	if (vg_min(to, lease.until) <= from || lease.ppm <= ppm)
		return;
	vg_earn(device,
		(int64_t)(vg_min(vg_min(to, lease.until) - from, vg_bucket_look_ns) *
			  (lease.ppm - ppm) / VG_PPM),
		vg_bucket_lent_cap);
}

int64_t vg_bucket_fill(struct vg_container_device *device, uint64_t now, uint32_t ppm,
		       int64_t cap, struct vg_lease lease)
{
	uint64_t filled = vg_load(&device->bucket_filled_ns);
	uint64_t elapsed;

	// This thread may have been stopped since `now`, while other threads refilled the bucket.
	if (filled > now && filled - now > vg_fill_longest)
		now = vg_now();
	elapsed = now - filled;
	if (filled > now) // another thread was later, or the value is forged
		elapsed = filled - now > vg_fill_longest ? vg_fill_step : 0;
	if (elapsed < vg_fill_step)
		return vg_balance(device);
	if (!__atomic_compare_exchange_n(&device->bucket_filled_ns, &filled, now, false,
					 __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return vg_balance(device); // another thread refills
	vg_earn(device, (int64_t)(vg_min(elapsed, vg_fill_longest) * ppm / VG_PPM), cap);
	vg_earn_lent(device, now - elapsed, now, ppm, lease);
	return vg_balance(device);
}

void vg_bucket_charge(struct vg_container_device *device, int64_t ns)
{
	__atomic_fetch_sub(&device->bucket_ns, (uint64_t)ns, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&device->spent_ns, (uint64_t)ns, __ATOMIC_RELAXED);
}

uint64_t vg_bucket_delay(int64_t balance, int64_t target, uint32_t ppm)
{
	if (balance >= target)
		return 0;
	return (uint64_t)(vg_clamp(target, vg_bucket_busy_cap) - vg_clamp(balance, vg_bucket_busy_cap)) *
	       1000 / (ppm < 1000 ? 1 : ppm / 1000);
}
