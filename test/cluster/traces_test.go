// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// traces are possible leftovers of a cluster on the machine.
type traces struct {
	Devices, Mounts, Cgroups, Processes, Paths []string
	Tunables                                   map[string]string
}

// watchedDirs are directories to which a node's programs write.
var watchedDirs = []string{
	"/", "/dev", "/dev/shm", "/etc", "/etc/cni", "/etc/containerd", "/etc/kubernetes", "/opt", "/run", "/run/netns", "/tmp",
	"/usr/lib/x86_64-linux-gnu", "/usr/local/bin", "/usr/local/sbin", "/var/lib", "/var/log",
}

var watchedTunables = []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"net/ipv4/ip_forward"}

func takeTraces(t *testing.T) traces {
	t.Helper()
	var found traces
	devices, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		found.Devices = append(found.Devices, d.Name)
	}
	found.Mounts = readLines(t, "/proc/self/mounts")
	found.Tunables = map[string]string{}
	for _, name := range watchedTunables {
		found.Tunables[name] = strings.Join(readLines(t, "/proc/sys/"+name), "\n")
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, "nri-vgpu") {
			found.Cgroups = append(found.Cgroups, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range watchedDirs {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			// Other programs use /tmp while the test runs.
			if dir != "/tmp" || strings.Contains(e.Name(), "nri-vgpu") || strings.HasPrefix(e.Name(), "pause-") {
				found.Paths = append(found.Paths, filepath.Join(dir, e.Name()))
			}
		}
	}
	found.Processes = clusterProcesses(t)
	return found
}

// clusterProcesses returns the programs that a cluster runs.
func clusterProcesses(t *testing.T) []string {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range entries {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		program, _, _ := bytes.Cut(line, []byte{0})
		name := filepath.Base(string(program))
		for _, prefix := range []string{"kube", "containerd", "etcd", "nri-vgpu-node", "pause"} {
			if strings.HasPrefix(name, prefix) && belongsTo(file, "test-traces") {
				found = append(found, name)
			}
		}
	}
	sort.Strings(found)
	return found
}

// belongsTo reports whether a process is in the cgroup of a cluster.
func belongsTo(cmdline, name string) bool {
	content, err := os.ReadFile(filepath.Join(filepath.Dir(cmdline), "cgroup"))
	return err == nil && strings.Contains(string(content), "/nri-vgpu-clusters/"+name)
}

func readLines(t *testing.T, path string) []string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for s := bufio.NewScanner(bytes.NewReader(content)); s.Scan(); {
		lines = append(lines, s.Text())
	}
	return lines
}

// TestDownLeavesNothing takes down a cluster with a running pod, and checks that the machine is as
// before.
func TestDownLeavesNothing(t *testing.T) {
	requireRoot(t)
	const name = "test-traces"
	if err := cluster.Down(cluster.Options{Name: name}); err != nil {
		t.Fatal(err)
	}
	before := takeTraces(t)
	c := up(t, cluster.Options{Name: name})
	loadWorkload(t, c)
	runPod(t, c, newPod("sleeps", "exec sleep 3600"), corev1.PodRunning)
	if during := takeTraces(t); len(during.Processes) < 7 || len(during.Cgroups) == 0 {
		t.Fatalf("the test does not see what a running cluster is: %+v", during)
	}
	start := time.Now()
	if err := c.Down(); err != nil {
		t.Fatal(err)
	}
	t.Logf("down took %s", time.Since(start))
	if diff := cmp.Diff(before, takeTraces(t)); diff != "" {
		t.Errorf("left on the machine (-before +after):\n%s", diff)
	}
}

func TestUpAfterCrash(t *testing.T) {
	const name = "test-crash"
	c := up(t, cluster.Options{Name: name})
	pid, err := c.Pid(t.Context(), cluster.Containerd)
	if err != nil {
		t.Fatal(err)
	}
	supervisor := supervisorOf(t, pid)
	if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, 10*time.Second, "no cluster is found after its supervisor was killed", func() bool {
		_, err := cluster.Find(cluster.Options{Name: name})
		return errors.Is(err, cluster.ErrNotRunning)
	})
	again := up(t, cluster.Options{Name: name, Reuse: true})
	loadWorkload(t, again)
	runPod(t, again, newPod("ends", "true"), corev1.PodSucceeded)
}

// supervisorOf returns the parent of a component.
func supervisorOf(t *testing.T, pid int) int {
	t.Helper()
	for _, line := range readLines(t, filepath.Join("/proc", strconv.Itoa(pid), "status")) {
		if value, ok := strings.CutPrefix(line, "PPid:"); ok {
			parent, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				t.Fatal(err)
			}
			return parent
		}
	}
	t.Fatalf("process %d has no parent", pid)
	return 0
}

func TestUpReuses(t *testing.T) {
	const name = "test-reuse"
	first := up(t, cluster.Options{Name: name})
	pid, err := first.Pid(t.Context(), cluster.Kubelet)
	if err != nil {
		t.Fatal(err)
	}
	second := up(t, cluster.Options{Name: name, Reuse: true})
	if again, err := second.Pid(t.Context(), cluster.Kubelet); err != nil || again != pid {
		t.Errorf("kubelet %d, then %d, %v: the running cluster was not reused", pid, again, err)
	}
}

// TestUpShowsFailure checks that the error itself contains the reason why a component does not
// start.
func TestUpShowsFailure(t *testing.T) {
	requireRoot(t)
	const name = "test-failure"
	broken := filepath.Join(t.TempDir(), "etcd")
	script := "#!/bin/sh\necho the disk is on fire >&2\nexit 7\n"
	if err := os.WriteFile(broken, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	binaries := builtBinaries(t)
	binaries["etcd"] = broken
	_, err := cluster.Up(t.Context(), cluster.Options{Name: name, Binaries: binaries, Out: testWriter{t}})
	if err == nil {
		t.Fatal("a cluster without etcd came up")
	}
	for _, want := range []string{"etcd has ended: exit status 7", "the disk is on fire", "the logs are in"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
	logs := filepath.Join(cluster.DefaultStateDir(name), "logs", "etcd.log")
	if _, err := os.Stat(logs); err != nil {
		t.Errorf("the logs were not kept: %v", err)
	}
	if err := cluster.Down(cluster.Options{Name: name}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(cluster.DefaultStateDir(name)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("state directory after down: %v", err)
	}
}
