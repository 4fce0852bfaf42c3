// SPDX-License-Identifier: Apache-2.0

package vgpuctl

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/releases"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// built returns the directory of a built release.
func built(t testing.TB, get func(releases.Builder) (releases.Release, error)) string {
	t.Helper()
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	r, err := get(releases.Builder{Source: source, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(r.Dir, "build")
}

func previousRelease(t testing.TB) string {
	return built(t, func(b releases.Builder) (releases.Release, error) { return b.Previous(t.Context()) })
}

func nextRelease(t testing.TB) string {
	return built(t, func(b releases.Builder) (releases.Release, error) { return b.Next(t.Context()) })
}

// mixed returns the command `vgpuctl args…` of one release, which makes the pages, with the
// interposer of another release.
func (m *machine) mixed(pages, interposer string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(pages, "bin/vgpuctl"), args...)
	cmd.Env = append(slices.Clone(m.env), "NRI_VGPU_LIB="+filepath.Join(interposer, "lib"))
	return cmd
}

// TestReleasesOneApartHoldLimits checks that this interposer enforces a program's limits on the
// previous release's pages. The previous interposer must also enforce limits on this release's
// pages.
func TestReleasesOneApartHoldLimits(t *testing.T) {
	previous, this := previousRelease(t), newMachine(t).build
	t.Parallel() // only now, because the build needs all processors
	for _, c := range []struct{ name, pages, interposer string }{
		{"the previous release's pages", previous, this},
		{"the previous release's interposer", this, previous},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			m.finish(0, m.mixed(c.pages, c.interposer, "run", "--memory", "2Gi", "--", m.workload("fill")))
			if peak := m.peak(m.oracle()); peak > limit || peak < limit/100*99 {
				t.Errorf("the program held %d bytes at its peak, want %d", peak, limit)
			}
			for _, release := range []string{previous, this} {
				status := m.finish(0, m.mixed(c.pages, c.interposer, "run", "--memory", "2Gi", "--", filepath.Join(release, "bin/vgpuctl"), "status"))
				if !strings.Contains(status, "2048 MiB") {
					t.Errorf("vgpuctl of %s shows no limit of 2 GiB:\n%s", release, status)
				}
			}
			timed.Run(t, func(t testing.TB) { mixedShare(t, c.pages, c.interposer) })
		})
	}
}

// mixedShare runs two programs beside each other, each with a limit on GPU time.
func mixedShare(t testing.TB, pages, interposer string) {
	m := newMachine(t)
	tenants := []tenant{{30, "async", "200"}, {50, "async", "200"}}
	var pids []int
	for i, tenant := range tenants {
		cmd := m.mixed(pages, interposer, "run", "--group", []string{"a", "b"}[i], "--cores", []string{"30", "50"}[i], "--",
			m.workload("spin"), "--pattern", tenant.pattern, "--kernel-us", tenant.kernel, "--streams", "8", "--duration", "60")
		pids = append(pids, m.start(cmd).Process.Pid)
	}
	m.waitForGPUTime(pids)
	time.Sleep(time.Second)
	wantLimits(t, tenants, m.sharesOf(pids, 2*time.Second))
}

// TestPagesOfAnUnknownVersionAreRefused checks that no program gets a GPU if the interposer cannot
// read the pages.
func TestPagesOfAnUnknownVersionAreRefused(t *testing.T) {
	next, this := nextRelease(t), newMachine(t).build
	t.Parallel() // only now, because the build needs all processors
	for _, c := range []struct{ name, pages, interposer, want string }{
		{"the next release's pages", next, this, "layout version 2, this library reads 1"},
		{"the next release's interposer", this, next, "layout version 1, this library reads 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			out, err := m.mixed(c.pages, c.interposer, "run", "--memory", "2Gi", "--", m.workload("fill")).CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.want) {
				t.Errorf("the program ended with %v and printed %s, want %q", err, out, c.want)
			}
			finished, err := m.oracle().Finished()
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range finished { // vgpuctl measures the size of a context
				for _, g := range p.GPUs {
					if p.Comm == "fill" && g.PeakBytes > 0 {
						t.Errorf("%s held %d bytes of GPU %d", p.Comm, g.PeakBytes, g.Index)
					}
				}
			}
		})
	}
}
