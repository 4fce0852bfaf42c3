// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/nri/pkg/stub"

	"github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"
	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/mountns"
)

// built is the path of the guard's program.
var built string

func TestMain(m *testing.M) {
	mountns.Main()
	nrilog.Set(silent{})
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "guard")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	built = filepath.Join(dir, "program")
	command := exec.Command("go", "build", "-o", built, "github.com/nri-vgpu/nri-vgpu/cmd/nri-vgpu-guard")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := command.CombinedOutput(); err != nil {
		panic(string(output))
	}
	return m.Run()
}

// node is a runtime that starts the guard, as after a boot.
type node struct {
	t        testing.TB
	dir      string
	program  string
	settings guardfile.Settings
	runtime  *adaptation.Adaptation
	// pods and containers are the runtime's pods and containers.
	pods       []*api.PodSandbox
	containers []*api.Container
}

func newNode(t testing.TB) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "guard") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{t: t, dir: dir, program: filepath.Join(dir, "plugins", paths.GuardProgram), settings: guardfile.SettingsFrom(config.Default())}
	n.settings.InstallDir = filepath.Join(dir, "opt")
	n.settings.Socket = n.socket()
	n.settings.RunDir = filepath.Join(dir, "run")
	n.settings.StateDir = filepath.Join(dir, "state")
	for _, d := range []string{n.settings.InstallDir, filepath.Dir(n.program)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The program reads the settings from its own directory.
	if err := os.Link(built, n.program); err != nil {
		t.Fatal(err)
	}
	n.write()
	n.start()
	t.Cleanup(func() { n.runtime.Stop() })
	return n
}

func (n *node) write() {
	n.t.Helper()
	if err := n.settings.Write(n.program); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) socket() string { return filepath.Join(n.dir, "nri.sock") }

func (n *node) start() {
	n.t.Helper()
	sync := func(ctx context.Context, cb adaptation.SyncCB) error {
		_, err := cb(ctx, n.pods, n.containers)
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	var err error
	n.runtime, err = adaptation.New("containerd", "v2.4.2", sync, update,
		adaptation.WithSocketPath(n.socket()),
		adaptation.WithPluginPath(filepath.Join(n.dir, "plugins")),
		adaptation.WithPluginConfigPath(filepath.Join(n.dir, "conf.d")))
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.runtime.Start(); err != nil {
		n.t.Fatal(err)
	}
}

// create sends a container to the runtime's plugins.
func (n *node) create(pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, error) {
	n.t.Helper()
	c.Id, c.Name = "c-"+pod.GetUid(), "main"
	resp, err := n.runtime.CreateContainer(context.Background(), &api.CreateContainerRequest{Pod: pod, Container: c})
	return resp.GetAdjust(), err
}

func inPod(uid string) *api.PodSandbox {
	return &api.PodSandbox{Id: "s-" + uid, Uid: uid, Name: "pod-" + uid, Namespace: "ns"}
}

func wants(value string) *api.Container {
	return &api.Container{Env: []string{gpuaccess.VisibleDevices + "=" + value}}
}

func hides(adjust *api.ContainerAdjustment) bool {
	for _, v := range adjust.GetEnv() {
		if v.GetKey() == gpuaccess.VisibleDevices && v.GetValue() == gpuaccess.NoDevices {
			return true
		}
	}
	return false
}

// agent is a plugin that replaces the agent.
type agent struct {
	adjust func(*api.ContainerAdjustment)
	hang   chan struct{}
	asked  atomic.Int32
}

func (a *agent) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	a.asked.Add(1)
	if a.hang != nil {
		<-a.hang
	}
	adjust := &api.ContainerAdjustment{}
	if a.adjust != nil {
		a.adjust(adjust)
	}
	return adjust, nil, nil
}

// connect registers a plugin, and waits for its first request.
func (n *node) connect(a *agent, index, name string) {
	n.t.Helper()
	st, err := stub.New(a, stub.WithPluginName(name), stub.WithPluginIdx(index),
		stub.WithSocketPath(n.socket()), stub.WithLogger(silent{}))
	if err != nil {
		n.t.Fatal(err)
	}
	hang := a.hang
	a.hang = nil
	if err := st.Start(context.Background()); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(st.Stop)
	eventually.Holds(n.t, 10*time.Second, "the runtime asks the plugin", func() bool {
		_, err := n.create(inPod("probe"), &api.Container{})
		return a.asked.Load() > 0 || err != nil && a.asked.Load() > 0
	})
	a.hang = hang
}

func TestWithoutTheAgent(t *testing.T) {
	n := newNode(t)
	adjust, err := n.create(inPod("system"), &api.Container{})
	if err != nil || !hides(adjust) {
		t.Errorf("a container without a request: %v, %v", adjust, err)
	}
	if _, err := n.create(inPod("greedy"), wants("all")); err == nil {
		t.Error("a container got all GPUs by a variable")
	}
	agent := wants("all")
	agent.Mounts = []*api.Mount{{Source: n.dir, Destination: "/var/run/nri", Options: []string{"rbind", "rw"}}}
	agent.Linux = &api.LinuxContainer{Devices: []*api.LinuxDevice{{Path: "/dev/kmsg"}, {Path: "/dev/nvidia0"}}}
	if adjust, err := n.create(inPod("agent"), agent); err != nil || hides(adjust) {
		t.Errorf("the agent itself cannot start: %v, %v", adjust, err)
	}

	// The guard reads a list that the agent wrote after the guard's start.
	if err := guardfile.WriteAsking(n.settings.StateDir, []guardfile.Pod{{UID: "listed"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.create(inPod("listed"), &api.Container{}); err == nil || !strings.Contains(err.Error(), "requests a GPU") {
		t.Errorf("a pod that requests a GPU: %v", err)
	}
	if err := guardfile.WriteAsking(n.settings.StateDir, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := n.create(inPod("listed"), &api.Container{}); err != nil {
		t.Errorf("a pod that no longer asks: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(paths.Containers(n.settings.RunDir), "given"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := n.create(inPod("given"), &api.Container{}); err == nil {
		t.Error("a pod that was given a GPU goes on without")
	}
	// An unreadable list allows no pod.
	if err := os.WriteFile(paths.AskingPods(n.settings.StateDir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if adjust, err := n.create(inPod("any"), &api.Container{}); err != nil || !hides(adjust) {
		t.Errorf("with a corrupt list: %v, %v", adjust, err)
	}
	if _, err := n.create(inPod("greedy"), wants("0")); err == nil {
		t.Error("with a corrupt list, a container got a GPU by a variable")
	}
}

// TestBehindTheAgent checks that the guard sees the agent's changes, and keeps them.
func TestBehindTheAgent(t *testing.T) {
	n := newNode(t)
	a := &agent{}
	n.connect(a, "90", "nri-vgpu")
	withheld := func(adjust *api.ContainerAdjustment) {
		adjust.AddEnv(gpuaccess.VisibleDevices, gpuaccess.NoDevices)
		adjust.AddAnnotation(paths.AdjustedAnnotation, "withheld")
	}
	granted := func(adjust *api.ContainerAdjustment) {
		adjust.AddEnv(gpuaccess.VisibleDevices, "GPU-x")
		adjust.AddMount(&api.Mount{Source: filepath.Join(paths.Containers(n.settings.RunDir), "u", "main", "limits"), Destination: paths.ContainerLimits})
	}
	byCDI := func(adjust *api.ContainerAdjustment) {
		adjust.AddCDIDevice(&api.CDIDevice{Name: "nri-vgpu.io/env=void"})
		adjust.AddAnnotation(paths.AdjustedAnnotation, "withheld")
	}
	twice := &api.Container{Env: []string{gpuaccess.VisibleDevices + "=all", gpuaccess.VisibleDevices + "=all"}}
	tests := []struct {
		name    string
		adjust  func(*api.ContainerAdjustment)
		c       *api.Container
		visible string
	}{
		{"nothing asked, nothing given", withheld, wants("all"), "void"},
		{"asked and given", granted, wants("all"), "GPU-x"},
		{"a variable that only CDI can set", byCDI, twice, ""},
	}
	if err := guardfile.WriteAsking(n.settings.StateDir, []guardfile.Pod{{UID: "u"}}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a.adjust = tt.adjust
			adjust, err := n.create(inPod("u"), tt.c)
			if err != nil {
				t.Fatal(err)
			}
			visible := ""
			for _, v := range adjust.GetEnv() {
				if v.GetKey() == gpuaccess.VisibleDevices {
					visible = v.GetValue()
				}
			}
			if visible != tt.visible {
				t.Errorf("it sees %q, want %q", visible, tt.visible)
			}
		})
	}
	a.adjust = func(*api.ContainerAdjustment) {}
	if _, err := n.create(inPod("u"), wants("all")); err == nil {
		t.Error("a container without the agent's changes passes")
	}
}

// TestBehindAnAgentThatHangs checks that a runtime that fails open drops a plugin that does not
// answer, and asks the next plugin.
func TestBehindAnAgentThatHangs(t *testing.T) {
	n := newNode(t)
	a := &agent{hang: make(chan struct{})}
	defer close(a.hang)
	n.connect(a, "90", "nri-vgpu")
	adaptation.SetPluginRequestTimeout(300 * time.Millisecond)
	defer adaptation.SetPluginRequestTimeout(adaptation.DefaultPluginRequestTimeout)
	before := a.asked.Load()
	if _, err := n.create(inPod("u"), wants("all")); err == nil {
		t.Error("a container got all GPUs while the agent hangs")
	}
	if a.asked.Load() == before {
		t.Error("the agent was not asked")
	}
	if adjust, err := n.create(inPod("system"), &api.Container{}); err != nil || !hides(adjust) {
		t.Errorf("a container without a request: %v, %v", adjust, err)
	}
}

// guards waits until the runtime has its guard and the stand-in, and returns both pids.
func (n *node) guards() (guard, standIn int) {
	n.t.Helper()
	eventually.Holds(n.t, 10*time.Second, "the runtime has its guard and the stand-in", func() bool {
		guard = n.childOf(os.Getpid())
		standIn = n.childOf(guard)
		return guard != 0 && standIn != 0 && connected(standIn)
	})
	return guard, standIn
}

// childOf returns a child of a process that runs the guard's program.
func (n *node) childOf(parent int) int {
	all, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, path := range all {
		dir := filepath.Dir(path)
		content, _ := os.ReadFile(path)
		program, _ := os.Readlink(filepath.Join(dir, "exe"))
		if program == n.program && strings.Contains(string(content), fmt.Sprintf("\nPPid:\t%d\n", parent)) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			return pid
		}
	}
	return 0
}

// connected reports whether a process is connected to the runtime: only a connected process has a
// socket.
func connected(pid int) bool {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return slices.ContainsFunc(links, func(link string) bool {
		target, _ := os.Readlink(link)
		return strings.HasPrefix(target, "socket:")
	})
}

// TestAGuardThatHasEnded checks that the stand-in replaces a guard that has exited. A runtime does
// not restart a guard that has exited or that the runtime has dropped.
func TestAGuardThatHasEnded(t *testing.T) {
	n := newNode(t)
	guard, standIn := n.guards()
	if err := syscall.Kill(guard, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, 10*time.Second, "the stand-in is the guard", func() bool {
		status, loaded, _ := guardfile.Loaded(n.settings.RunDir)
		return loaded && status.PID == standIn
	})
	if _, err := n.create(inPod("u"), wants("all")); err == nil {
		t.Error("a container got all GPUs after the end of the guard")
	}
}

func TestForgedMarksAndForeignDevices(t *testing.T) {
	n := newNode(t)
	marked := map[string]string{paths.AdjustedAnnotation: "withheld"}
	pod := inPod("forged")
	pod.Annotations = marked
	c := wants("all")
	c.Annotations = marked
	if _, err := n.create(pod, c); err == nil {
		t.Error("a user's annotation is taken for the agent's")
	}
	c = wants("all")
	c.Annotations = marked
	if _, err := n.create(inPod("forged"), c); err == nil {
		t.Error("an annotation that no plugin made is taken for the agent's")
	}
	other := &agent{adjust: func(adjust *api.ContainerAdjustment) { adjust.AddAnnotation(paths.AdjustedAnnotation, "withheld") }}
	n.connect(other, "50", "other")
	if _, err := n.create(inPod("forged"), wants("all")); err == nil {
		t.Error("another plugin's annotation is taken for the agent's")
	}
	other.adjust = func(adjust *api.ContainerAdjustment) { adjust.AddCDIDevice(&api.CDIDevice{Name: "nvidia.com/gpu=all"}) }
	if _, err := n.create(inPod("foreign"), &api.Container{}); err == nil {
		t.Error("another plugin passed all GPUs to a container")
	}
}

func TestSettingsAreFollowed(t *testing.T) {
	n := newNode(t)
	n.settings.CDIKind = "acme.org/gpu"
	n.write()
	acme := func() *api.Container { return &api.Container{CDIDevices: []*api.CDIDevice{{Name: "acme.org/gpu=0"}}} }
	if _, err := n.create(inPod("u"), acme()); err == nil {
		t.Error("a kind of device that was configured is given away")
	}
	// An agent of the previous release does not mark the containers that it exempts, and its
	// settings lack marksExempt.
	if err := os.WriteFile(paths.GuardSettings(n.program), previousSettings(t, n.settings, "ns"), 0o600); err != nil {
		t.Fatal(err)
	}
	if adjust, err := n.create(inPod("u"), wants("all")); err != nil || hides(adjust) {
		t.Errorf("a namespace that the previous release exempts: %v, %v", adjust, err)
	}
	// An agent of this release marks exempt containers. A container without a mark has therefore
	// not been seen by the agent.
	n.settings.ExemptNamespaces = []string{"ns"}
	n.write()
	if _, err := n.create(inPod("u"), wants("all")); err == nil {
		t.Error("an exempt namespace that the agent did not answer for")
	}
	// Unreadable settings change nothing: the guard keeps the last readable settings.
	if err := os.WriteFile(paths.GuardSettings(n.program), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.create(inPod("u"), wants("all")); err == nil {
		t.Error("settings that cannot be read open the node")
	}
}

// previousSettings returns the guard's settings as the previous release writes them.
func previousSettings(t *testing.T, s guardfile.Settings, exempt string) []byte {
	t.Helper()
	data, err := json.Marshal(map[string]any{
		"installDir": s.InstallDir, "runDir": s.RunDir, "stateDir": s.StateDir, "exemptNamespaces": []string{exempt},
		"cdiKind": s.CDIKind, "plugin": s.Plugin, "socket": s.Socket,
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestHarmlessWhereNothingIsInstalled(t *testing.T) {
	for name, remove := range map[string]func(*node) error{
		"settings": func(n *node) error { return os.Remove(paths.GuardSettings(n.program)) },
		"libraries": func(n *node) error {
			return os.RemoveAll(n.settings.InstallDir)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			if _, err := n.create(inPod("u"), wants("all")); err == nil {
				t.Fatal("it does not guard")
			}
			if err := remove(n); err != nil {
				t.Fatal(err)
			}
			if adjust, err := n.create(inPod("u"), wants("all")); err != nil || hides(adjust) {
				t.Errorf("it still guards: %v, %v", adjust, err)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	n := newNode(t)
	var s guardfile.Status
	loaded := func() bool {
		var ok bool
		var err error
		s, ok, err = guardfile.Loaded(n.settings.RunDir)
		if err != nil {
			t.Fatal(err)
		}
		return ok && s.PID != 0
	}
	eventually.Holds(t, 10*time.Second, "the guard is loaded", loaded)
	if !strings.Contains(s.Runtime, "containerd") || s.Version == "" {
		t.Errorf("got the status %+v", s)
	}
	if rss := residentKiB(t, s.PID); rss > 20<<10 {
		t.Errorf("the guard has %d KiB of memory", rss)
	} else {
		t.Logf("the guard has %d KiB of memory", rss)
	}
	n.runtime.Stop()
	eventually.Holds(t, 10*time.Second, "the guard has ended with the runtime", func() bool { return !loaded() })
}

func residentKiB(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	t.Fatalf("no VmRSS in %s", status)
	return 0
}
