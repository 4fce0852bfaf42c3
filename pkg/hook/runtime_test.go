// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	nrigen "github.com/containerd/nri/pkg/runtime-tools/generate"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/cdispec"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/store"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/mountns"
)

func TestMain(m *testing.M) {
	mountns.Main()
	nrilog.Set(stubLog{slog.New(slog.DiscardHandler)})
	os.Exit(m.Run())
}

const (
	gpuA = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
	gpuB = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
	mib  = 1 << 20
)

func testGPUs() []gpu.GPU {
	return []gpu.GPU{
		{UUID: gpuA, Index: 0, Minor: 3, Name: "Test GPU", MemoryBytes: 16384 * mib, Multiprocessors: 132, Healthy: true},
		{UUID: gpuB, Index: 1, Minor: 5, Name: "Test GPU", MemoryBytes: 16384 * mib, Healthy: true},
	}
}

// apiServer is a fake of the hook's view of the API server's pods.
type apiServer struct {
	mu      sync.Mutex
	pods    map[string]*corev1.Pod
	away    bool
	lagging map[string]bool // Get returns these pods, and the watch does not
}

func (s *apiServer) Cached(ref pods.Ref) (*corev1.Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod, ok := s.pods[ref.UID]
	return pod, ok && !s.lagging[ref.UID]
}

func (s *apiServer) Get(ctx context.Context, ref pods.Ref) (*corev1.Pod, error) {
	s.mu.Lock()
	pod, ok := s.pods[ref.UID]
	away := s.away
	s.mu.Unlock()
	if away {
		<-ctx.Done()
		return nil, pods.ErrUnavailable
	}
	if !ok {
		return nil, pods.ErrNotFound
	}
	return pod, nil
}

func (s *apiServer) Alive(uid string) bool {
	pod, ok := s.Cached(pods.Ref{UID: uid})
	return ok && !pods.Ended(pod)
}

func (s *apiServer) List() []*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.pods))
}

func (s *apiServer) HasSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.away
}

func (s *apiServer) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// node is a fake runtime and a fake API server, with a hook between them.
type node struct {
	t       testing.TB
	cfg     config.Config
	api     *apiServer
	ledger  *placement.Ledger
	hook    *Hook
	runtime *adaptation.Adaptation
	relay   *relay
	// version is the version that the runtime reports.
	version string
	dir     string
	proc    string
	told    told
	// mounts places each usage page on its own file system. mounts requires
	// root.
	mounts bool
	// foreign reports which GPUs another device plugin offers.
	foreign func(uuid string) bool
	// log is the agent's log; the default is the test's log.
	log *slog.Logger
	// changed is called when the agent is registered, and when the agent loses its registration.
	changed func()

	mu         sync.Mutex
	containers []*api.Container
	sandboxes  []*api.PodSandbox
	stopHook   func()
}

type nodeOption func(*node)

func withVersion(v string) nodeOption { return func(n *node) { n.version = v } }

func withMethod(m string) nodeOption { return func(n *node) { n.cfg.Injection.Method = m } }

// newNode starts a node, and waits until the hook has registered.
func newNode(t testing.TB, opts ...nodeOption) *node {
	t.Helper()
	// The path of a socket must be short.
	dir, err := os.MkdirTemp("", "hook")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{t: t, cfg: config.Default(), dir: dir, version: "v2.4.2",
		api: &apiServer{pods: map[string]*corev1.Pod{}, lagging: map[string]bool{}}}
	n.cfg.Paths = config.Paths{InstallDir: filepath.Join(dir, "opt"), RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state")}
	n.cfg.NRI.SocketPath = filepath.Join(dir, "nri.sock")
	n.cfg.Injection.CDISpecDirs = []string{filepath.Join(dir, "cdi")}
	n.cfg.Injection.CDIOutputDir = filepath.Join(dir, "cdi")
	n.cfg.Injection.Method = config.InjectEnv
	for _, o := range opts {
		o(n)
	}
	if err := cdispec.Write(n.cfg.Injection.CDIOutputDir, testGPUs(), n.cfg.Injection.DriverCapabilities); err != nil {
		t.Fatal(err)
	}
	n.relay = newRelay(t, n.cfg.NRI.SocketPath, n.runtimeSocket())
	n.startRuntime()
	t.Cleanup(func() { n.runtime.Stop() })
	n.startHook()
	t.Cleanup(func() { n.stopHook() })
	return n
}

func (n *node) runtimeSocket() string { return filepath.Join(n.dir, "runtime.sock") }

// stopRuntime ends the runtime as if it had died.
func (n *node) stopRuntime() {
	n.t.Helper()
	n.runtime.Stop()
	n.relay.cut()
	eventually.Holds(n.t, 10*time.Second, "the hook is not registered", func() bool { return !n.hook.Registered() })
}

func (n *node) startRuntime() {
	n.t.Helper()
	sync := func(ctx context.Context, cb adaptation.SyncCB) error {
		n.mu.Lock()
		sandboxes, containers := n.sandboxes, n.containers
		n.mu.Unlock()
		_, err := cb(ctx, sandboxes, containers)
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	runtime, err := adaptation.New("containerd", n.version, sync, update,
		adaptation.WithSocketPath(n.runtimeSocket()),
		adaptation.WithPluginPath(filepath.Join(n.dir, "plugins")),
		adaptation.WithPluginConfigPath(filepath.Join(n.dir, "conf.d")))
	if err != nil {
		n.t.Fatal(err)
	}
	if err := runtime.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.runtime = runtime
}

// startHook starts a new agent with the files of the previous agent.
func (n *node) startHook() {
	n.t.Helper()
	files, err := store.New(filepath.Join(n.cfg.Paths.RunDir, "containers"))
	if err != nil {
		n.t.Fatal(err)
	}
	if n.mounts {
		files.MountUsage(paths.Usage(n.cfg.Paths.RunDir))
	}
	files.ContextBytes = func(string) uint64 { return n.cfg.Memory.ContextBytes() }
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		n.t.Fatal(err)
	}
	devices, err := cdispec.NewDevices(n.cfg.Injection.CDISpecDirs)
	if err != nil {
		n.t.Fatal(err)
	}
	n.ledger = placement.New(testGPUs(), n.cfg)
	n.hook = New(Options{
		Config: n.cfg, Pods: n.api, Ledger: n.ledger, GPUs: testGPUs, Foreign: n.foreign, Store: files, Metrics: metrics, Events: &n.told, Room: &n.told, Proc: n.proc, Changed: n.changed,
		Rules: adjust.Rules{Injection: n.cfg.Injection, LibraryDir: filepath.Join(n.cfg.Paths.InstallDir, "1"), AgentDir: paths.Agent(n.cfg.Paths.RunDir),
			MPSDir: paths.MPSClients(n.cfg.Paths.RunDir), SHMDir: paths.MPSSHM(n.cfg.Paths.RunDir), HasCDIDevice: devices.Has},
		Log: cmp.Or(n.log, slog.New(slog.NewTextHandler(testWriter{n.t}, nil))),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		n.hook.Serve(ctx)
		close(done)
	}()
	n.stopHook = func() { cancel(); <-done }
	n.waitRegistered()
}

// restartHook ends the agent, and starts a new agent with its files.
func (n *node) restartHook() {
	n.t.Helper()
	n.stopHook()
	n.startHook()
}

func (n *node) waitRegistered() {
	n.t.Helper()
	// The runtime enables the plugin only after Synchronize has returned. Once
	// a request reaches the plugin, the plugin is enabled.
	eventually.Holds(n.t, 10*time.Second, "the hook is registered", func() bool { return n.hook.Registered() })
	eventually.Holds(n.t, 10*time.Second, "the runtime asks the hook", func() bool {
		before := n.handled()
		_, err := n.runtime.CreateContainer(context.Background(), probe())
		return err == nil && n.handled() > before
	})
}

// probe returns a container that the hook does not adjust, to test whether
// requests reach the hook.
func probe() *api.CreateContainerRequest {
	pod := &api.PodSandbox{Id: "probe", Uid: "probe", Name: "probe", Namespace: "ns", Annotations: map[string]string{pods.SourceAnnotation: "file"}}
	return &api.CreateContainerRequest{Pod: pod, Container: &api.Container{Id: "probe", Name: "probe"}}
}

func (n *node) handled() uint64 {
	var total uint64
	for metric := range collect(n.hook.opts.Metrics.latency) {
		total += metric.GetHistogram().GetSampleCount()
	}
	return total
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	// A goroutine of the stub may outlive the test.
	defer func() { _ = recover() }()
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

var _ io.Writer = testWriter{}

// pod adds a pod to the API server. A container has the form "name" or "name=<MiB of vgpu-memory>".
func (n *node) pod(uid string, containers ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + uid, UID: types.UID(uid)},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, c := range containers {
		name, memory, asks := strings.Cut(c, "=")
		container := corev1.Container{Name: name}
		if asks {
			container.Resources.Limits = corev1.ResourceList{"nri-vgpu.io/vgpu-memory": resource.MustParse(memory)}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, container)
	}
	n.api.change(func() { n.api.pods[uid] = pod })
	return pod
}

// run adds a pod with one container to the API server, and creates the container.
func (n *node) run(uid, container string) *rspec.Spec {
	n.t.Helper()
	n.pod(uid, container)
	return mustCreate(n.t, n, uid)
}

func (n *node) deletePod(uid string) {
	n.api.change(func() { delete(n.api.pods, uid) })
	n.hook.PodGone(uid)
}

func sandbox(uid string) *api.PodSandbox {
	return &api.PodSandbox{Id: "sandbox-" + uid, Uid: uid, Name: "pod-" + uid, Namespace: "ns"}
}

// create creates a container as the runtime does: it calls the plugins, and
// applies their adjustments to the OCI spec.
func (n *node) create(uid string, change ...func(*rspec.Spec)) (*rspec.Spec, error) {
	n.t.Helper()
	return n.createIn(sandbox(uid), "main", change...)
}

func (n *node) createIn(pod *api.PodSandbox, name string, change ...func(*rspec.Spec)) (*rspec.Spec, error) {
	n.t.Helper()
	spec := &rspec.Spec{
		Process: &rspec.Process{Env: []string{"PATH=/bin"}},
		Linux:   &rspec.Linux{Resources: &rspec.LinuxResources{}},
		Mounts:  []rspec.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/etc/hosts", Type: "bind", Source: "/x"}},
	}
	for _, f := range change {
		f(spec)
	}
	container := fromSpec(pod, name, spec)
	resp, err := n.runtime.CreateContainer(context.Background(), &api.CreateContainerRequest{Pod: pod, Container: container})
	if err != nil {
		return nil, err
	}
	inject := func(s *rspec.Spec, devices []string) error {
		cache, err := cdi.NewCache(cdi.WithSpecDirs(n.cfg.Injection.CDISpecDirs...), cdi.WithAutoRefresh(false))
		if err != nil {
			return err
		}
		_, err = cache.InjectDevices(s, devices...)
		return err
	}
	adjusted := nrigen.SpecGenerator(&specEditor{spec: spec}, nrigen.WithCDIDeviceInjector(inject))
	if err := adjusted.Adjust(resp.GetAdjust()); err != nil {
		n.t.Fatal(err)
	}
	n.keep(pod, fromSpec(pod, name, spec))
	return spec, nil
}

// keep adds a running container to the runtime.
func (n *node) keep(pod *api.PodSandbox, c *api.Container) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c.State = api.ContainerState_CONTAINER_RUNNING
	n.sandboxes = append(n.sandboxes, pod)
	n.containers = append(n.containers, c)
}

func fromSpec(pod *api.PodSandbox, name string, spec *rspec.Spec) *api.Container {
	c := &api.Container{
		Id: pod.GetId() + "-" + name, PodSandboxId: pod.GetId(), Name: name,
		Env: append([]string{}, spec.Process.Env...), Mounts: api.FromOCIMounts(spec.Mounts), Annotations: spec.Annotations,
	}
	if spec.Linux != nil {
		c.Linux = &api.LinuxContainer{Devices: api.FromOCILinuxDevices(spec.Linux.Devices)}
	}
	return c
}

// exit ends a container and reports it as the runtime does.
func (n *node) exit(uid string) {
	n.t.Helper()
	pod := sandbox(uid)
	id := pod.GetId() + "-main"
	n.mu.Lock()
	var rest []*api.Container
	for _, c := range n.containers {
		if c.GetId() != id {
			rest = append(rest, c)
		}
	}
	n.containers = rest
	n.mu.Unlock()
	_, err := n.runtime.StopContainer(context.Background(), &api.StopContainerRequest{Pod: pod, Container: &api.Container{Id: id, Name: "main"}})
	if err != nil {
		n.t.Fatal(err)
	}
}

// env returns the last value of a variable in the container.
func env(spec *rspec.Spec, name string) (string, bool) {
	value, found := "", false
	for _, entry := range spec.Process.Env {
		if key, v, _ := strings.Cut(entry, "="); key == name {
			value, found = v, true
		}
	}
	return value, found
}

func addEnv(entries ...string) func(*rspec.Spec) {
	return func(s *rspec.Spec) { s.Process.Env = append(s.Process.Env, entries...) }
}

func addMount(destination string) func(*rspec.Spec) {
	return func(s *rspec.Spec) {
		s.Mounts = append(s.Mounts, rspec.Mount{Destination: destination, Type: "bind", Source: "/user", Options: []string{"rbind"}})
	}
}

func addDevice(paths ...string) func(*rspec.Spec) {
	return func(s *rspec.Spec) {
		for _, path := range paths {
			s.Linux.Devices = append(s.Linux.Devices, rspec.LinuxDevice{Path: path, Type: "c"})
		}
	}
}

func mountAt(spec *rspec.Spec, destination string) (rspec.Mount, bool) {
	for _, m := range spec.Mounts {
		if m.Destination == destination {
			return m, true
		}
	}
	return rspec.Mount{}, false
}
