package lender

import (
	"errors"
	"io/fs"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// tenant is a container's pages with an account for each of its GPUs.
type tenant struct {
	pages      *limits.Lending
	generation uint64
	uuids      []string
	accounts   []*account
	claims     []limits.Allowance
	watched    bool // on some GPU
}

func openTenant(dir string) (*tenant, error) {
	pages, err := limits.OpenLending(dir)
	if err != nil {
		return nil, err
	}
	t := &tenant{pages: pages, generation: pages.Generation()}
	devices, err := pages.Devices()
	if err != nil {
		return nil, errors.Join(err, pages.Close())
	}
	for _, d := range devices {
		a := &account{
			guarantee: d.ComputePPM,
			maximum:   max(d.ComputePPM, d.MaximumPPM),
			metered:   d.ComputePPM < limits.NoComputeLimit && !d.MPS,
		}
		if !a.metered {
			a.guarantee, a.maximum = 0, 0 // it has no part of its own
		}
		t.uuids = append(t.uuids, d.UUID)
		t.accounts = append(t.accounts, a)
	}
	t.claims = make([]limits.Allowance, len(devices))
	return t, nil
}

// changed tells whether the limits are others than when the pages were opened.
func (t *tenant) changed() bool { return t.pages.Generation() != t.generation }

func (t *tenant) look(now, passed time.Duration) {
	err := t.pages.Allowances(t.claims)
	for i, a := range t.accounts {
		if err != nil {
			a.missed(passed)
		} else {
			a.look(t.claims[i], now, passed)
		}
	}
}

func (t *tenant) grant(now time.Duration) {
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

// open opens a container's pages. One without pages has no limit to be kept;
// what else is wrong with pages is said once.
func (l *Lender) open(dir string) {
	t, err := openTenant(dir)
	if err == nil {
		l.tenants[dir] = t
		delete(l.refused, dir)
		return
	}
	if !errors.Is(err, fs.ErrNotExist) && l.refused[dir] != err.Error() {
		l.refused[dir] = err.Error()
		l.Log.Error("a container neither lends nor borrows GPU time", "error", err)
	}
}

// forget takes a container's leases back.
func (l *Lender) forget(dir string, t *tenant) {
	delete(l.tenants, dir)
	if err := t.pages.Close(); err != nil {
		l.Log.Error("a container's pages cannot be closed", "error", err)
	}
}
