// SPDX-License-Identifier: Apache-2.0

package tooltest

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
)

// profiles returns the simulator's profiles by name.
func profiles(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../profiles/*.conf")
	if err != nil || len(paths) < 4 {
		t.Fatalf("profiles %q, error %v", paths, err)
	}
	named := map[string]string{}
	for _, path := range paths {
		named[strings.TrimSuffix(filepath.Base(path), ".conf")] = path
	}
	return named
}

// create runs gpusim create with a profile, and returns its output.
func create(t *testing.T, env []string, args ...string) (output string, status int) {
	t.Helper()
	command := exec.Command(filepath.Join(simtest.Build(t), "gpusim"), append([]string{"create"}, args...)...)
	command.Env = append(os.Environ(), env...)
	text, err := command.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(text), command.ProcessState.ExitCode()
}

func TestProfilesAreAccepted(t *testing.T) {
	for name, path := range profiles(t) {
		t.Run(name, func(t *testing.T) {
			for way, run := range map[string]func(dir string) (string, int){
				"--profile":      func(dir string) (string, int) { return create(t, nil, "--profile", path, dir) },
				"GPUSIM_PROFILE": func(dir string) (string, int) { return create(t, []string{"GPUSIM_PROFILE=" + path}, dir) },
			} {
				dir := filepath.Join(t.TempDir(), "gpusim")
				if output, status := run(dir); status != 0 || output != "" {
					t.Fatalf("%s: status %d: %s", way, status, output)
				}
				want := values(t, path)["name"]
				machine := simtest.At(t, dir)
				if state := machine.Tool(t, "oracle", "--json", dir); len(want) != 1 || !strings.Contains(state, want[0]) {
					t.Errorf("%s: no GPU named %q in %s", way, want, state)
				}
			}
		})
	}
}

// TestProfileIsNamedTwice checks that the option overrides the environment.
func TestProfileIsNamedTwice(t *testing.T) {
	env := []string{"GPUSIM_PROFILE=/nonexistent"}
	if output, status := create(t, env, "--profile", profiles(t)["future"], filepath.Join(t.TempDir(), "gpusim")); status != 0 {
		t.Errorf("status %d: %s", status, output)
	}
}

// TestSeveralProfiles checks that a driver and a card combine, and that later profiles override
// earlier profiles, with every way to name profiles.
func TestSeveralProfiles(t *testing.T) {
	dir := t.TempDir()
	files := make([]string, 3)
	for i, text := range []string{"name = First\nnames = r535\n", "name = Second\n", "colour = blue\n"} {
		files[i] = filepath.Join(dir, strconv.Itoa(i)+".conf")
		if err := os.WriteFile(files[i], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for way, made := range map[string]func(dir string) (string, int){
		"options": func(dir string) (string, int) {
			return create(t, nil, "--profile", files[0], "--profile", files[1], dir)
		},
		"a list": func(dir string) (string, int) { return create(t, nil, "--profile", files[0]+":"+files[1], dir) },
		"the environment": func(dir string) (string, int) {
			return create(t, []string{"GPUSIM_PROFILE=" + files[0] + ":" + files[1]}, dir)
		},
		"an option that replaces the environment": func(dir string) (string, int) {
			return create(t, []string{"GPUSIM_PROFILE=" + files[2]}, "--profile", files[0], "--profile", files[1], dir)
		},
	} {
		at := filepath.Join(t.TempDir(), "gpusim")
		if output, status := made(at); status != 0 || output != "" {
			t.Fatalf("%s: status %d: %s", way, status, output)
		}
		state := simtest.At(t, at).Tool(t, "oracle", "--json", at)
		if !strings.Contains(state, "Second") || strings.Contains(state, "First") || !strings.Contains(state, `"names":"r535"`) {
			t.Errorf("%s: want the first profile's driver and the second profile's name: %s", way, state)
		}
	}
	output, status := create(t, nil, "--profile", files[0]+":"+files[2], filepath.Join(t.TempDir(), "gpusim"))
	if want := "gpusim: " + files[2] + ":1: unknown key"; status != 1 || !strings.HasPrefix(output, want) {
		t.Errorf("status %d, output %q; want 1 and %q", status, output, want)
	}
}

// values returns the values of each key in a profile.
func values(t *testing.T, path string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	set := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		if key, value, ok := strings.Cut(line, "="); ok {
			set[strings.TrimSpace(key)] = append(set[strings.TrimSpace(key)], strings.TrimSpace(value))
		}
	}
	return set
}

// one returns the value of a key that the profile sets once.
func one(t *testing.T, set map[string][]string, key string) string {
	t.Helper()
	if len(set[key]) != 1 {
		t.Fatalf("%s is set to %q", key, set[key])
	}
	return set[key][0]
}

// TestProfilesFollowTheFacts compares profiles with recorded facts of drivers. The README names the
// sources.
func TestProfilesFollowTheFacts(t *testing.T) {
	type facts struct{ Names, NVML, Context string }
	want := map[string]facts{
		"r535-h100":   {"r535", "own-zero", "616MiB"},
		"r550-4060ti": {"r550", "not-available", "107MiB"},
		"r580-h200":   {"r580", "own-bytes", "512MiB"},
		"future":      {"future", "host-pids", "256MiB"},
	}
	got := map[string]facts{}
	for name, path := range profiles(t) {
		set := values(t, path)
		got[name] = facts{one(t, set, "names"), one(t, set, "nvml"), one(t, set, "context")}
		if opens, err := time.ParseDuration(one(t, set, "nvml_open")); err != nil ||
			opens < 14*time.Millisecond || opens > 170*time.Millisecond {
			t.Errorf("%s: NVML takes %s to open, not 14 to 170 ms", name, set["nvml_open"])
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestH200Costs compares the costs of calls with the costs measured on an H200. The variants of a
// call for per-thread streams cost the same as the call. The measured cost of a pair is the sum of
// its two calls' costs.
func TestH200Costs(t *testing.T) {
	measured := map[string]string{
		"cuLaunchKernel": "2983ns", "cuLaunchKernel_ptsz": "2983ns",
		"cuLaunchKernelEx": "2983ns", "cuLaunchKernelEx_ptsz": "2983ns",
		"cuEventRecord": "1261ns", "cuEventRecord_ptsz": "1261ns",
		"cuEventQuery":       "215ns",
		"cuEventElapsedTime": "69ns", "cuEventElapsedTime_v2": "69ns",
		"cuStreamIsCapturing": "18ns", "cuStreamIsCapturing_ptsz": "18ns",
		"cuCtxGetCurrent": "14ns",
		"cuMemGetInfo":    "5232ns", "cuMemGetInfo_v2": "5232ns",
		"cuMemAlloc": "39133ns", "cuMemAlloc_v2": "39133ns",
		"cuMemFree": "39133ns", "cuMemFree_v2": "39133ns",
		"cuMemAllocAsync": "330ns", "cuMemAllocAsync_ptsz": "330ns",
		"cuMemFreeAsync": "330ns", "cuMemFreeAsync_ptsz": "330ns",
	}
	costs := map[string]string{}
	for _, cost := range values(t, profiles(t)["r580-h200"])["cost"] {
		call, ns, _ := strings.Cut(cost, " ")
		costs[call] = strings.TrimSpace(ns)
	}
	if diff := cmp.Diff(measured, costs); diff != "" {
		t.Error(diff)
	}
}

func TestBadProfiles(t *testing.T) {
	long := "name = " + strings.Repeat("x", 600) + "\n"
	var costs strings.Builder
	for i, call := range sampleCalls(t, 33) {
		costs.WriteString("cost = " + call + " " + []string{"1us", "2us"}[i%2] + "\n")
	}
	tests := []struct {
		name, profile string
		phrase        string // after the file's name
	}{
		{"unknown key", "driver = 535.1\n\ncolour = blue\n", ":3: unknown key or bad value: colour = blue"},
		{"a key of the wrong case", "Names = r535\n", ":1: unknown key"},
		{"no value", "names\n", ":1: unknown key or bad value: names"},
		{"an empty value", "names =\n", ":1: unknown key or bad value"},
		{"a GPU", "names = r535\n[gpu]\n", ":2: unknown key or bad value: [gpu]"},
		{"an unknown regime", "nvml = honest # most of the time\n", ":1: unknown key or bad value: nvml = honest"},
		{"a time without a known unit", "nvml_open = 5min\n", ":1: unknown key or bad value"},
		{"a negative time", "nvml_open = -5ms\n", ":1: unknown key or bad value"},
		{"a time out of range", "nvml_open = 99999999999999s\n", ":1: unknown key or bad value"},
		{"a size without a known unit", "context = 5MB\n", ":1: unknown key or bad value"},
		{"a clock that stands still", "clock_drift = -1000000ppm\n", ":1: unknown key or bad value"},
		{"a drift without a known unit", "clock_drift = 5%\n", ":1: unknown key or bad value"},
		{"a negative slew", "clock_slew = -5ppm\n", ":1: unknown key or bad value"},
		{"no period of a slew", "clock_slew_period = 0s\n", ":1: unknown key or bad value"},
		{"a yield without a known unit", "yield = 5min\n", ":1: unknown key or bad value"},
		{"a gap that is negative", "gap = -5us\n", ":1: unknown key or bad value"},
		{"a latency without a number", "launch_latency = quick\n", ":1: unknown key or bad value"},
		{"a clock that may stand still", "power = 91%\n", ":1: unknown key or bad value"},
		{"a power without a known unit", "power = 300W\n", ":1: unknown key or bad value"},
		{"no half period of the power", "power_period = 1us\n", ":1: unknown key or bad value"},
		{"kernels that speed each other up", "crowding = -5%\n", ":1: unknown key or bad value"},
		{"a stamp that is neither yes nor no", "copy_stamp = often\n", ":1: unknown key or bad value"},
		{"an unknown kind of utilisation", "utilisation = guessed\n", ":1: unknown key or bad value"},
		{"too many queues", "connections = 33\n", ":1: unknown key or bad value"},
		{"neither yes nor no", "lazy_loading = maybe\n", ":1: unknown key or bad value"},
		{"text that is too long", "names = a-name-of-more-than-fifteen\n", ":1: unknown key or bad value"},
		{"a line that is too long", "names = r535\n" + long, ":2: longer than 510 characters"},
		{"no text", "names = r535\n\x00\x01\x02\n", ":2: longer than 510 characters, or not text"},
		{"a cost of no call", "cost =\n", ":1: neither libcuda nor libnvidia-ml has a call"},
		{"a cost of an unknown call", "\ncost = cuLaunchKernels 5us\n", ":2: neither libcuda nor libnvidia-ml has a call cuLaunchKernels"},
		{"a cost without a time", "cost = cuLaunchKernel\n", ":1: unknown key or bad value"},
		{"a cost with two times", "cost = cuLaunchKernel 5us 6us\n", ":1: unknown key or bad value"},
		{"too many costs", costs.String(), ":33: more than 32 calls with costs"},
		{"a failure of an unknown call", "fail = nvmlInit_v9 1\n", ":1: neither libcuda nor libnvidia-ml has a call nvmlInit_v9"},
		{"a failure without a result", "fail = cuInit\n", ":1: unknown key or bad value"},
		{"a failure with result 0", "fail = cuInit 0\n", ":1: unknown key or bad value"},
		{"a negative result", "fail = cuInit -1\n", ":1: unknown key or bad value"},
		{"an unknown word", "fail = cuInit 999 before 3\n", ":1: unknown key or bad value: fail = cuInit 999 before 3"},
		{"a word without its number", "fail = cuInit 999 after\n", ":1: unknown key or bad value"},
		{"too many failures", strings.Repeat("fail = cuInit 999 after 3 count 2\n", 17), ":17: more than 16 failures"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bad.conf")
			if err := os.WriteFile(path, []byte(test.profile), 0o600); err != nil {
				t.Fatal(err)
			}
			rejected(t, path, test.phrase)
		})
	}
}

// TestBadOptionsAreNamed checks that the error of a bad value names the option and the help.
func TestBadOptionsAreNamed(t *testing.T) {
	for option, value := range map[string]string{"--gpus": "0", "--memory": "16GB", "--seed": "x"} {
		output, status := create(t, nil, option, value, filepath.Join(t.TempDir(), "gpusim"))
		if want := "gpusim: bad value of " + option + ": " + value + ": run gpusim --help\n"; status != 2 || output != want {
			t.Errorf("status %d, %q, want %q", status, output, want)
		}
	}
}

// sampleCalls returns this many names of calls.
func sampleCalls(t *testing.T, count int) []string {
	t.Helper()
	text, err := os.ReadFile("../data/libnvidia-ml-exports.txt")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))[:count]
}

func TestUnreadableProfiles(t *testing.T) {
	dir := t.TempDir()
	rejected(t, filepath.Join(dir, "none.conf"), ": No such file or directory")
	rejected(t, dir, ":1: Is a directory")
}

// rejected checks that gpusim create makes no machine, and that the message names the file.
func rejected(t *testing.T, path, phrase string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "gpusim")
	output, status := create(t, nil, "--profile", path, dir)
	if status != 1 || !strings.HasPrefix(output, "gpusim: "+path+phrase) {
		t.Errorf("status %d, output %q; want 1 and %q", status, output, "gpusim: "+path+phrase)
	}
	if _, err := os.Stat(filepath.Join(dir, "state")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("gpusim create made a state: %v", err)
	}
}

// TestCostsOfEveryLine checks that several costs of a call count as one cost, and that the last
// cost applies.
func TestCostsOfEveryLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "often.conf")
	if err := os.WriteFile(path, []byte(strings.Repeat("cost = cuInit 1us\n", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, status := create(t, nil, "--profile", path, filepath.Join(t.TempDir(), "gpusim")); status != 0 {
		t.Errorf("status %d: %s", status, output)
	}
}

// TestCallsOfLaterDrivers checks that calls of drivers after 580, and fictitious calls, can have
// costs and failures.
func TestCallsOfLaterDrivers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "later.conf")
	profile := "names = unknown\ncost = cuLaunchHostFunc_v2 1us\nfail = cuGraphAddNode_v3 801\nfail = cuFrobnicate 999 after 1\n"
	if err := os.WriteFile(path, []byte(profile), 0o600); err != nil {
		t.Fatal(err)
	}
	machine := simtest.NewWith(t, path, 1, 1<<30)
	program := filepath.Join(t.TempDir(), "program")
	cc := exec.Command("cc", "-x", "c", "-", "-x", "none", "-o", program, filepath.Join(machine.LibraryDir, "libcuda.so.1"))
	cc.Stdin = strings.NewReader(`
int cuInit(unsigned);
int cuFrobnicate(int *);
int main(void)
{
	int value;
	return cuInit(0) || cuFrobnicate(&value) || cuFrobnicate(&value) != 999;
}
`)
	if output, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("cc: %v: %s", err, output)
	}
	if output, err := machine.Command(t, program).CombinedOutput(); err != nil {
		t.Errorf("the second call did not fail: %v: %s", err, output)
	}
}

// TestLibrariesOfProfiles checks that a machine has the library of its profile's names.
func TestLibrariesOfProfiles(t *testing.T) {
	has := map[string][2]bool{"r535-h100": {false, false}, "r550-4060ti": {true, false}, "r580-h200": {true, true}, "future": {true, true}}
	for name, path := range profiles(t) {
		machine := simtest.NewWith(t, path, 1, 1<<30)
		truth, err := oracle.Open(machine.Dir)
		if err != nil {
			t.Fatal(err)
		}
		defer truth.Close()
		if want := one(t, values(t, path), "names"); truth.Names() != want || filepath.Base(machine.LibraryDir) != want {
			t.Errorf("%s: names of %q, libraries in %s, want %s", name, truth.Names(), machine.LibraryDir, want)
		}
		library, err := elf.Open(filepath.Join(machine.LibraryDir, "libcuda.so.1"))
		if err != nil {
			t.Fatal(err)
		}
		defer library.Close()
		symbols, err := library.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		for i, call := range []string{"cuGreenCtxCreate", "cuCtxCreate_v4"} {
			exported := slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == call && s.Section != elf.SHN_UNDEF })
			if exported != has[name][i] {
				t.Errorf("%s: %s is exported: %v", name, call, exported)
			}
		}
	}
}
