// SPDX-License-Identifier: Apache-2.0

package lender

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// tenant is a container's pages with an account for each of its GPUs.
type tenant struct {
	pages      *limits.Lending // nil if the pages are unreadable
	generation uint64
	uuids      []string
	accounts   []*account
	claims     []limits.Allowance
	watched    bool // whether the lender watches one of the GPUs
}

func openTenant(dir string) (*tenant, error) {
	pages, err := limits.OpenLending(dir)
	if err != nil {
		return nil, err
	}
	generation := pages.Generation()
	devices, err := pages.Devices()
	if err != nil {
		return nil, errors.Join(err, pages.Close())
	}
	t := newTenant(devices)
	t.pages, t.generation = pages, generation
	return t, nil
}

func newTenant(devices []limits.Device) *tenant {
	t := &tenant{claims: make([]limits.Allowance, len(devices))}
	for _, d := range devices {
		a := &account{
			guarantee: d.ComputePPM,
			maximum:   max(d.ComputePPM, d.MaximumPPM),
			metered:   d.ComputePPM < limits.NoComputeLimit && !d.MPS,
		}
		if !a.metered {
			a.guarantee, a.maximum = 0, 0 // the container has no guarantee
		}
		t.uuids = append(t.uuids, d.UUID)
		t.accounts = append(t.accounts, a)
	}
	return t
}

// unreadable returns a container with unreadable pages, like pages of another release. The
// container may use its whole allocation at any time, so the lender lends no time of the container.
func unreadable(devices []limits.Device) *tenant {
	t := newTenant(devices)
	for _, a := range t.accounts {
		a.maximum = a.guarantee
	}
	return t
}

// changed reports whether the limits have changed since the lender opened the pages.
func (t *tenant) changed() bool { return t.pages != nil && t.pages.Generation() != t.generation }

// stale reports whether the lender must open the pages again.
func (t *tenant) stale() bool { return t.pages == nil || !t.pages.Current() || t.changed() }

func (t *tenant) look(now, passed time.Duration) {
	readable := t.pages != nil && t.pages.Allowances(t.claims) == nil
	for i, a := range t.accounts {
		if !readable {
			a.missed(passed)
		} else {
			a.look(t.claims[i], now, passed)
		}
	}
}

func (t *tenant) grant(now time.Duration) {
	if t.pages == nil {
		return
	}
	for i, a := range t.accounts {
		if a.shares() {
			t.pages.Lend(i, a.lease, now+term)
		}
		if a.metered {
			t.pages.Beside(i, a.others, a.othersPPM, now)
			a.others = 0
		}
	}
}

// open opens a container's pages. A container without a limits page has no limit. open logs any
// other failure once.
func (l *Lender) open(dir string) {
	t, err := openTenant(dir)
	if err == nil {
		l.tenants[dir] = t
		l.refused.Note(dir, nil)
		return
	}
	if _, missing := os.Stat(filepath.Join(dir, limits.LimitsFile)); errors.Is(missing, fs.ErrNotExist) {
		return
	}
	if l.refused.Note(dir, err) == loop.Failed {
		l.Log.Error("failed to open a container's pages; it neither lends nor borrows GPU time", "error", err)
	}
	if l.Given != nil {
		l.tenants[dir] = unreadable(l.Given(dir))
	}
}

// forget closes a container's pages, which withdraws the container's leases.
func (l *Lender) forget(dir string, t *tenant) {
	delete(l.tenants, dir)
	if t.pages == nil {
		return
	}
	if err := t.pages.Close(); err != nil {
		l.Log.Error("failed to close a container's pages", "error", err)
	}
}
