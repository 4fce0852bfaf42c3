// SPDX-License-Identifier: Apache-2.0

package vgpuctl

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/verify"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// untimed selects the checks that compare no shares of time. eachGroup also selects one check of
// shares and the pairs. A separate test judges latencies, because other work on the machine disturbs
// latencies, and a failure must not repeat the other checks.
const (
	untimed   = `(driver|memory|capture|hang): .*`
	eachGroup = `^(` + untimed + `|compute: one stream, 30 %, 2 ms|pair: .*)$`
	latency   = `^latency: `
)

// verify runs `vgpuctl verify` with an interposer, or with the built interposer if lib is "".
// verify returns the report, and checks that the exit status agrees with the report.
func (m *machine) verify(lib, only string) verify.Report {
	m.Helper()
	dir := m.TempDir()
	page := filepath.Join(dir, "report.html")
	cmd := m.command("verify", "--quick", "--measure", "600ms", "--only", only, "--json", filepath.Join(dir, "report.json"), "--html", page)
	if lib != "" {
		cmd.Env = append(cmd.Env, "NRI_VGPU_LIB="+lib)
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	_ = cmd.Run()
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		m.Fatalf("exit status %d: %s", cmd.ProcessState.ExitCode(), &said)
	}
	var report verify.Report
	if err := json.Unmarshal(text, &report); err != nil {
		m.Fatal(err)
	}
	want := 0
	if report.Count(verify.DoesNotHold) > 0 {
		want = 1
	}
	if got := cmd.ProcessState.ExitCode(); got != want {
		m.Errorf("exit status %d, want %d: %s", got, want, &said)
	}
	curve := slices.ContainsFunc(report.Rows, func(r verify.Row) bool { return len(r.Shares) > 0 })
	if html, err := os.ReadFile(page); err != nil || bytes.Contains(html, []byte("</svg>")) != curve {
		m.Errorf("the page has a curve is %v, want %v: %v", !curve, curve, err)
	}
	return report
}

// wantVerdicts checks that the checks with these prefixes do not hold, and that all other checks
// hold. The report must have a check for each prefix, and a check without any of the prefixes.
func wantVerdicts(t testing.TB, report verify.Report, fails ...string) {
	t.Helper()
	checked := map[string]bool{}
	for _, row := range report.Rows {
		want, kind := verify.Holds, ""
		for _, start := range fails {
			if strings.HasPrefix(row.Group+": "+row.Name, start) {
				want, kind = verify.DoesNotHold, start
			}
		}
		checked[kind] = true
		if row.Verdict != want {
			t.Errorf("%s: %s %s, want %s; bound %s, figure %s; %s", row.Group, row.Name, row.Verdict, want, row.Bound, row.Figure, row.Why)
		}
	}
	for _, start := range append(fails, "") {
		if !checked[start] {
			t.Errorf("no check was made whose name begins with %q, or that should hold", start)
		}
	}
}

// TestVerify checks that verify finds that all limits hold, and finds the card's properties. The
// test covers each driver, and a card whose clock drifts and whose context has one queue.
func TestVerify(t *testing.T) {
	t.Parallel()
	profiles, err := filepath.Glob("../../gpusim/profiles/*.conf")
	if err != nil || len(profiles) == 0 {
		t.Fatalf("no profiles: %v", err)
	}
	for _, profile := range profiles {
		const card = "slice = 2ms\nswitch = 200us\nclock_drift = 100ppm\nconnections = 8"
		t.Run(filepath.Base(profile), timed.Test(func(t testing.TB) {
			report := newMachineWith(t, card, profile).verify("", eachGroup)
			wantVerdicts(t, report)
			for name, want := range map[string]string{"hardware queues": "8 for a context", "time slice": "2.00 ms"} {
				if got := fact(report, name); !strings.HasPrefix(got, want) {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
			if got := fact(report, "clock drift"); !near(got, 100) {
				t.Errorf("the clock drifts by %s, want 100 ppm", got)
			}
		}))
		t.Run(filepath.Base(profile)+", latency", timed.Test(func(t testing.TB) {
			wantVerdicts(t, newMachineWith(t, card, profile).verify("", latency))
		}))
	}
}

// fact returns the value of a fact.
func fact(r verify.Report, name string) string {
	for _, f := range r.Facts {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// near reports whether a text begins with about this number.
func near(text string, want float64) bool {
	number, _, _ := strings.Cut(text, " ")
	got, err := strconv.ParseFloat(number, 64)
	return err == nil && math.Abs(got-want) < 10
}

// without makes a directory like build/lib, with libraries compiled from source instead of the
// interposer, or without libraries if source is empty.
func (m *machine) without(source string) string {
	m.Helper()
	dir := m.TempDir()
	entries, err := filepath.Glob(filepath.Join(m.build, "lib", "vgpu-*"))
	if err != nil || len(entries) == 0 {
		m.Fatalf("no programs beside the interposer: %v", err)
	}
	for _, path := range entries {
		if err := os.Symlink(path, filepath.Join(dir, filepath.Base(path))); err != nil {
			m.Fatal(err)
		}
	}
	if source == "" {
		return dir
	}
	for _, name := range libraries {
		cc := exec.Command("cc", "-x", "c", "-", "-shared", "-fPIC", "-Wl,-soname,nothing-"+name, "-o", filepath.Join(dir, name))
		cc.Stdin = strings.NewReader(source)
		if out, err := cc.CombinedOutput(); err != nil {
			m.Fatalf("cc: %v: %s", err, out)
		}
	}
	return dir
}

// TestVerifyWithoutInterposer checks that verify detects a library that limits nothing, and a
// missing library. With the library that limits nothing, checks that do not depend on limits
// succeed.
func TestVerifyWithoutInterposer(t *testing.T) {
	t.Parallel()
	const checks = `^(` + untimed + `|compute: one stream, 30 %, 2 ms)$`
	t.Run("limits nothing", timed.Test(func(t testing.TB) {
		m := newMachine(t)
		report := m.verify(m.without(`const char mark[] = "NRI_VGPU_DIR";`), checks)
		wantVerdicts(t, report, "driver: names", "memory", "compute")
	}))
	t.Run("absent", timed.Test(func(t testing.TB) {
		m := newMachine(t)
		report := m.verify(m.without(""), checks)
		wantVerdicts(t, report, "driver: names", "memory", "compute", "capture", "hang")
	}))
}

// reverted lists edits that undo the rules against drifting clocks. With the edits, probes count
// for any charges of other containers, and the interposer keeps the least delay for seconds.
var reverted = []struct{ file, from, to string }{
	{"time/others.c", "bool vg_others_none(const struct vg_pages *pages, uint32_t device)\n{\n", "\tif (pages)\n\t\treturn false;\n"},
	{"time/others.c", "int64_t vg_others_deduct(uint64_t *deducted, uint64_t charged, int64_t want)\n{\n", "\tif (deducted)\n\t\treturn want > 0 ? want : 0;\n"},
	{"time/stretch.c", "\tvg_stretch_window_ns = 50000000,", ""},
}

// revert builds an interposer with the edits of reverted.
func (m *machine) revert() string {
	m.Helper()
	tree := m.TempDir()
	source := filepath.Join(tree, "interposer")
	m.run("cp", "-r", "../../interposer", "../../include", tree)
	for _, r := range reverted {
		path := filepath.Join(source, "src", r.file)
		text, err := os.ReadFile(path)
		if err != nil {
			m.Fatal(err)
		}
		to := r.from + r.to
		if r.to == "" {
			to = "\tvg_stretch_window_ns = 1000000000,"
		}
		changed := strings.Replace(string(text), r.from, to, 1)
		if changed == string(text) {
			m.Fatalf("%s has changed: update the edits of reverted: the file lacks %q", r.file, r.from)
		}
		if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
			m.Fatal(err)
		}
	}
	return m.built(source)
}

// TestVerifyFindsDrift checks that without the rules against drift, long kernels have more than
// their limit on a card with a fast clock. verify finds this error, and no other check fails.
func TestVerifyFindsDrift(t *testing.T) {
	t.Parallel()
	lib := newMachine(t).revert()
	timed.Run(t, func(t testing.TB) {
		m := newMachineWith(t, "clock_drift = 100ppm")
		report := m.verify(lib, `^(`+untimed+`|compute: one stream, 30 %, (200 µs|20 ms))$`)
		wantVerdicts(t, report, "compute: one stream, 30 %, 20 ms")
	})
}

// older contains the sources of an old interposer, of commit e47f2d2.
const older = "testdata/interposer-e47f2d2.tar.gz"

// built makes a directory like build/lib with an interposer of these sources.
func (m *machine) built(source string) string {
	m.Helper()
	lib := m.compiled(source)
	dir := m.without("")
	for _, name := range libraries {
		if err := os.Symlink(filepath.Join(lib, name), filepath.Join(dir, name)); err != nil {
			m.Fatal(err)
		}
	}
	return dir
}

// libraries lists the interposer's libraries.
var libraries = []string{"libcuda.so.1", "libnvidia-ml.so.1"}

// compiled returns the directory of the libraries that the compiler makes from these sources. The
// directory stays in build/, because most changes of the repository leave the sources unchanged.
func (m *machine) compiled(source string) string {
	m.Helper()
	kept := filepath.Join(m.build, "interposers", m.hash(filepath.Dir(source)))
	if _, err := os.Stat(kept); err == nil {
		return kept
	}
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
		m.Fatal(err)
	}
	staging, err := os.MkdirTemp(filepath.Dir(kept), "making-")
	if err != nil {
		m.Fatal(err)
	}
	defer os.RemoveAll(staging)
	m.run("make", "-s", "-C", source, "BUILD="+staging, "all")
	if err := os.Rename(filepath.Join(staging, "lib"), kept); err != nil {
		m.Fatal(err)
	}
	return kept
}

// hash returns a hash of all files below a directory, and of the compiler's version.
func (m *machine) hash(dir string) string {
	m.Helper()
	sum := sha256.New()
	fmt.Fprintln(sum, m.run("cc", "--version"))
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(sum, "%q %q\n", strings.TrimPrefix(path, dir), text)
		return err
	})
	if err != nil {
		m.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// TestVerifyFindsAnOlderBuild checks that verify finds the errors of an older interposer. The older
// interposer does not know the driver's names, breaks captures, and can be disabled by a variable
// of the environment. The other checks of this interposer succeed.
func TestVerifyFindsAnOlderBuild(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	source := m.TempDir()
	m.run("tar", "-xzf", older, "-C", source)
	lib := m.built(filepath.Join(source, "interposer"))
	timed.Run(t, func(t testing.TB) {
		m := newMachineWith(t, "", "../../gpusim/profiles/r580-h200.conf")
		report := m.verify(lib, `^(driver: names.*|(memory|capture|hang): .*|compute: one (stream|connection), 30 %, 2 ms)$`)
		wantVerdicts(t, report, "driver: names", "compute: one connection", "capture")
	})
}

// TestCountedTime checks that the GPU time that verify counts equals the oracle's measurement for
// the tenant, alone and beside another tenant. verify counts the number of kernels times their
// length.
func TestCountedTime(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"one stream":    {"--kernel-us", "200"},
		"eight streams": {"--pattern", "streams", "--streams", "8", "--blocks", strconv.Itoa(132 * 32), "--kernel-us", "2000"},
		"graph":         {"--pattern", "graph", "--kernel-us", "200"},
		"waiting":       {"--pattern", "sync", "--kernel-us", "20"},
	} {
		t.Run(name, timed.Test(func(t testing.TB) {
			m := newMachineWith(t, "slice = 2ms\nswitch = 200us")
			workload := filepath.Join(m.build, "lib/vgpu-workload")
			m.start(m.command("run", "--cores", "40", "--", workload, "spin", "--kernel-us", "20000", "--duration", "60"))
			time.Sleep(300 * time.Millisecond)
			out := m.finish(0, m.command(append([]string{"run", "--cores", "40", "--", workload, "spin", "--duration", "1"}, args...)...))
			var spun struct {
				PID     int     `json:"pid"`
				Counted float64 `json:"kernel_time_s"`
			}
			if err := json.Unmarshal([]byte(out), &spun); err != nil {
				t.Fatal(err)
			}
			finished, err := m.oracle().Finished()
			if err != nil {
				t.Fatal(err)
			}
			var had float64
			for _, p := range finished {
				for _, g := range p.GPUs {
					if p.Pid == spun.PID {
						had += float64(g.GPUTimeNs) / 1e9
					}
				}
			}
			if had == 0 || math.Abs(spun.Counted-had) > 0.01*had {
				t.Errorf("counted %.4f s, and the oracle measured %.4f s", spun.Counted, had)
			}
		}))
	}
}

// TestVerifyCannotRun checks that verify has a separate exit status if it cannot run.
func TestVerifyCannotRun(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for want, args := range map[string][]string{
		"no check has such a name":      {"--only", "^nothing$"},
		"allowed: a regular expression": {"--only", "("},
		"unknown flag":                  {"--nonsense"},
		"unknown command":               {"nonsense"},
		"write the report":              {"--only", "^driver", "--json", "/nonexistent/report.json"},
	} {
		if said := m.finish(2, m.command(append([]string{"verify"}, args...)...)); !strings.Contains(said, want) {
			t.Errorf("%q: %s, want %s", args, said, want)
		}
	}
	busy := m.command("run", "--cores", "10", "--", m.workload("spin"), "--duration", "60")
	m.start(busy)
	eventually.Holds(m, patience, "verify reports that another program uses the GPU", func() bool {
		cmd := m.command("verify", "--only", "^driver")
		said, _ := cmd.CombinedOutput()
		return cmd.ProcessState.ExitCode() == 2 && strings.Contains(string(said), "use the GPU")
	})
	none := m.command("verify")
	none.Env = append(none.Env, "GPUSIM_STATE=/nonexistent")
	if said := m.finish(2, none); !strings.Contains(said, "examine the GPU") {
		t.Errorf("without a GPU: %s", said)
	}
	blind := m.command("verify")
	blind.Env = append(blind.Env, "LD_LIBRARY_PATH=/nonexistent")
	if said := m.finish(2, blind); !strings.Contains(said, "install the NVIDIA driver") {
		t.Errorf("without a driver: %s", said)
	}
}
