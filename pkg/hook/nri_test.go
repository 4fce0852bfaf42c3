// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/machine"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

func collect(c prometheus.Collector) iter.Seq[*dto.Metric] {
	return func(yield func(*dto.Metric) bool) {
		ch := make(chan prometheus.Metric, 100)
		c.Collect(ch)
		close(ch)
		for m := range ch {
			var out dto.Metric
			if m.Write(&out) == nil && !yield(&out) {
				return
			}
		}
	}
}

func wantEnv(t *testing.T, spec *rspec.Spec, name, want string) {
	t.Helper()
	if got, _ := env(spec, name); got != want {
		t.Errorf("%s is %q, want %q, in %v", name, got, want, spec.Process.Env)
	}
}

func mustCreate(t testing.TB, n *node, uid string, change ...func(*rspec.Spec)) *rspec.Spec {
	t.Helper()
	spec, err := n.create(uid, change...)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestContainerThatAsksForNothingSeesNothing(t *testing.T) {
	for _, version := range []string{"v2.4.2", "v2.0.4"} {
		n := newNode(t, withVersion(version))
		n.pod("u", "main")
		spec := mustCreate(t, n, "u")
		wantEnv(t, spec, adjust.VisibleDevices, "void")
		if mark := spec.Annotations[paths.AdjustedAnnotation]; mark != "withheld" {
			t.Errorf("the guard reads the mark %q", mark)
		}
		spec = mustCreate(t, n, "u", addEnv(adjust.VisibleDevices+"=all"))
		wantEnv(t, spec, adjust.VisibleDevices, "void")
		if _, ok := mountAt(spec, paths.ContainerLimits); ok {
			t.Error("it was given limits")
		}
	}
}

func TestImageAndPodBothSetVisibleDevices(t *testing.T) {
	twice := addEnv(adjust.VisibleDevices+"=all", adjust.VisibleDevices+"=all")
	n := newNode(t)
	n.pod("none", "main")
	n.pod("some", "main=4096")
	wantEnv(t, mustCreate(t, n, "none", twice), adjust.VisibleDevices, "void")
	wantEnv(t, mustCreate(t, n, "some", twice), adjust.VisibleDevices, gpuA)

	old := newNode(t, withVersion("v2.0.4"))
	old.pod("none", "main")
	_, err := old.create("none", twice)
	if err == nil || !strings.Contains(err.Error(), "remove it from the pod's env") {
		t.Errorf("a runtime without CDI: got %v", err)
	}
	wantEnv(t, mustCreate(t, old, "none", addEnv(adjust.VisibleDevices+"=all", adjust.VisibleDevices+"=void")), adjust.VisibleDevices, "void")
}

func TestContainerThatAsksGetsItsPart(t *testing.T) {
	n := newNode(t)
	spec := n.run("u", "main=4096")
	dir := filepath.Join(n.cfg.Paths.RunDir, "containers/u/main")
	lib := filepath.Join(n.cfg.Paths.InstallDir, "1")
	wantEnv(t, spec, adjust.VisibleDevices, gpuA)
	wantEnv(t, spec, adjust.LDPreload, adjust.PreloadValue)
	for destination, want := range map[string]struct{ source, access string }{
		paths.ContainerLimits:   {dir + "/limits", "ro"},
		paths.ContainerUsage:    {dir + "/usage", "rw"},
		paths.ContainerCUDA:     {lib + "/libcuda.so.1", "ro"},
		paths.ContainerNVML:     {lib + "/libnvidia-ml.so.1", "ro"},
		paths.ContainerVgpuctl:  {lib + "/vgpuctl", "ro"},
		paths.ContainerPreload:  {dir + "/ld.so.preload", "ro"},
		paths.ContainerStandIns: {lib + "/preload", "ro"},
		paths.ContainerAgent:    {n.cfg.Paths.RunDir + "/agent", "ro"},
	} {
		m, ok := mountAt(spec, destination)
		if !ok || m.Source != want.source || !slices.Contains(m.Options, want.access) || m.Type != "bind" {
			t.Errorf("%s: got %+v", destination, m)
		}
	}
	devices, err := limits.Read(dir + "/limits")
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) != 1 || devices[0].UUID != gpuA || devices[0].MemoryBytes != 4096*mib || devices[0].ComputePPM != limits.NoComputeLimit {
		t.Errorf("limits page has %+v", devices)
	}
	if _, err := n.hook.opts.Store.Assignment("u", "main"); err != nil {
		t.Error(err)
	}
}

func TestUsersPreloadIsKept(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=1024")
	spec := mustCreate(t, n, "u", addEnv("LD_PRELOAD=/lib/jemalloc.so"))
	wantEnv(t, spec, adjust.LDPreload, adjust.PreloadValue+":/lib/jemalloc.so")

	spec = mustCreate(t, n, "u", addEnv("LD_PRELOAD=/image.so", "LD_PRELOAD=/a.so:/b.so /c.so"))
	wantEnv(t, spec, adjust.LDPreload, adjust.PreloadValue)
	m, _ := mountAt(spec, paths.ContainerPreload)
	content, err := os.ReadFile(m.Source)
	if err != nil {
		t.Fatal(err)
	}
	if want := string(paths.PreloadContent()) + "/a.so\n/b.so\n/c.so\n"; string(content) != want {
		t.Errorf("ld.so.preload has %q, want %q", content, want)
	}

	old := newNode(t, withVersion("v2.0.4"))
	old.pod("u", "main=1024")
	spec = mustCreate(t, old, "u", addEnv("LD_PRELOAD=/image.so", "LD_PRELOAD=/a.so"))
	wantEnv(t, spec, adjust.LDPreload, "/a.so")
	m, _ = mountAt(spec, paths.ContainerPreload)
	if content, err := os.ReadFile(m.Source); err != nil || string(content) != string(paths.PreloadContent()) {
		t.Errorf("ld.so.preload has %q, %v", content, err)
	}
}

func TestInjectionByCDI(t *testing.T) {
	n := newNode(t, withMethod(config.InjectAuto))
	n.pod("u", "main=4096")
	// Until a spec names the GPU, auto selects env.
	wantEnv(t, mustCreate(t, n, "u"), adjust.VisibleDevices, gpuA)

	spec := `{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","containerEdits":{"env":["NVIDIA_VISIBLE_DEVICES=everything"]},
	 "devices":[{"name":"` + gpuA + `","containerEdits":{"env":["GOT=` + gpuA + `"]}},
	            {"name":"` + gpuB + `","containerEdits":{"env":["GOT=` + gpuB + `"]}}]}`
	if err := os.WriteFile(filepath.Join(n.cfg.Injection.CDIOutputDir, "nvidia.json"), []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, 10*time.Second, "the GPU has a CDI device", func() bool { return n.hook.opts.Rules.HasCDIDevice("nvidia.com/gpu=" + gpuA) })
	for _, change := range []func(*rspec.Spec){addEnv(), addEnv(adjust.VisibleDevices + "=all"), addEnv(adjust.VisibleDevices+"=all", adjust.VisibleDevices+"=all")} {
		got := mustCreate(t, n, "u", change)
		wantEnv(t, got, "GOT", gpuA)
		wantEnv(t, got, adjust.VisibleDevices, "void")
	}
}

// TestCDIKind checks that a container gets the CDI device of the configured kind, although another
// kind has a device with the same name.
func TestCDIKind(t *testing.T) {
	const kind = "acme.org/parts"
	n := newNode(t, withMethod(config.InjectCDI), func(n *node) {
		n.cfg.Injection.CDIKind = kind
		if err := os.MkdirAll(n.cfg.Injection.CDIOutputDir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, kind := range map[string]string{"acme.json": kind, "nvidia.json": "nvidia.com/gpu"} {
			spec := fmt.Sprintf(`{"cdiVersion":"0.5.0","kind":%q,"devices":[{"name":%q,"containerEdits":{"env":["GOT=%s"]}}]}`, kind, gpuA, kind)
			if err := os.WriteFile(filepath.Join(n.cfg.Injection.CDIOutputDir, name), []byte(spec), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
	n.pod("u", "main=4096")
	wantEnv(t, mustCreate(t, n, "u"), "GOT", kind)
}

func TestInjectionDirect(t *testing.T) {
	n := newNode(t, withMethod(config.InjectDirect), func(n *node) {
		n.cfg.Injection.Direct = config.Direct{
			Devices: []string{"/dev/null"},
			Mounts: []config.DirectMount{
				{Source: "/dev/gpusim/gpu{minor}", Destination: "/dev/gpusim/gpu{minor}"},
				{Source: "/dev/gpusim/state", Destination: "/dev/gpusim/state"},
				{Source: "/lib/{uuid}/{index}", Destination: "/lib/{multiarch}/x", ReadOnly: true},
			},
		}
	})
	n.pod("u", "main=4096")
	spec := mustCreate(t, n, "u", addEnv(adjust.VisibleDevices+"=all"))
	wantEnv(t, spec, adjust.VisibleDevices, "void")
	if m, _ := mountAt(spec, "/dev/gpusim/gpu3"); m.Source != "/dev/gpusim/gpu3" || !slices.Contains(m.Options, "rw") {
		t.Errorf("got %+v", spec.Mounts)
	}
	if m, _ := mountAt(spec, "/lib/"+machine.Multiarch+"/x"); m.Source != "/lib/"+gpuA+"/0" || !slices.Contains(m.Options, "ro") {
		t.Errorf("got %+v", spec.Mounts)
	}
	if d := spec.Linux.Devices; len(d) != 1 || d[0].Path != "/dev/null" || d[0].Major != 1 || d[0].Minor != 3 || d[0].Type != "c" {
		t.Errorf("got %+v", d)
	}
}

func TestDeviceNodes(t *testing.T) {
	device, err := deviceNode("/dev/null")
	if err != nil || device.GetType() != "c" || device.GetMajor() != 1 || device.GetMinor() != 3 || device.GetFileMode().GetValue() != 0o666 {
		t.Errorf("/dev/null is %v, %v", device, err)
	}
	for name, path := range map[string]string{"nothing": filepath.Join(t.TempDir(), "missing"), "a directory": t.TempDir()} {
		if device, err := deviceNode(path); err == nil {
			t.Errorf("%s is the device %v", name, device)
		}
		told, err := convert(adjust.Container{Name: "main"}, adjust.Adjustment{DeviceNodes: []string{"/dev/null", path}})
		var refusal *adjust.RefusalError
		if !errors.As(err, &refusal) || refusal.Reason != adjust.ReasonInjection || told != nil {
			t.Errorf("%s is injected by %v: %v", name, told, err)
		}
	}
}

// TestOutcomesAreReported checks that the hook reports one outcome for each container that requests a
// part of a GPU, and no outcome for other containers.
func TestOutcomesAreReported(t *testing.T) {
	n := newNode(t)
	type outcome struct {
		pod, container string
		refused        bool
	}
	var told []outcome
	n.hook.opts.Outcome = func(podUID, container string, refused bool) {
		told = append(told, outcome{podUID, container, refused})
	}
	n.pod("granted", "main=1024")
	n.pod("huge", "main=99999999")
	n.pod("none", "main")
	for uid, wantsError := range map[string]bool{"granted": false, "huge": true, "none": false} {
		told = nil
		var want []outcome
		if uid != "none" {
			want = []outcome{{uid, "main", wantsError}}
		}
		if _, err := n.create(uid); (err != nil) != wantsError {
			t.Errorf("%s: %v", uid, err)
		}
		if !slices.Equal(told, want) {
			t.Errorf("reported were %v, want %v", told, want)
		}
	}
}

func TestMetricsAreRegisteredOnce(t *testing.T) {
	registry := prometheus.NewRegistry()
	if _, err := NewMetrics(registry); err != nil {
		t.Fatal(err)
	}
	if _, err := NewMetrics(registry); err == nil {
		t.Error("they were registered twice")
	}
}

func TestMountsThatHideOursAreRefused(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=1024")
	for _, destination := range []string{
		"/etc/ld.so.preload", "/etc/ld.so.preload/", "/etc/x/../ld.so.preload", "//etc//ld.so.preload",
		"/run/nri-vgpu", "/run/nri-vgpu/", "/run/nri-vgpu/limits", "/var/run/nri-vgpu/limits",
		"/usr/local/nri-vgpu/lib", "/usr/local/nri-vgpu/lib/libcuda.so.1", "etc/ld.so.preload",
	} {
		_, err := n.create("u", addMount(destination))
		if err == nil || !strings.Contains(err.Error(), "remove that volumeMount") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v", destination, err)
		}
	}
	if _, ok := n.ledger.Get("u", "main"); ok {
		t.Error("a refused container holds a GPU")
	}
	for _, destination := range []string{"/run/nri-vgpu-other", "/etc/ld.so.preload.d", "/var/run", "/usr/local/share", "/usr/bin"} {
		mustCreate(t, n, "u", addMount(destination))
	}
}

// TestVolumesAboveOursAreRefused checks that a container with limits must have no volume above
// nri-vgpu's files, since the container could remove the files. A container without limits may have
// the volume.
func TestVolumesAboveOursAreRefused(t *testing.T) {
	n := newNode(t)
	n.pod("part", "main=1024")
	n.pod("whole", "main=16384")
	allTime := n.pod("all-time", "main=16384")
	n.api.change(func() {
		allTime.Spec.Containers[0].Resources.Limits["nri-vgpu.io/vgpu-cores"] = resource.MustParse("100")
	})
	for _, destination := range []string{"/etc", "/run", "/run/", "/usr/local", "/usr/x/..", "/"} {
		_, err := n.create("part", addMount(destination))
		if err == nil || !strings.Contains(err.Error(), "would lie in a volume") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v", destination, err)
		}
		mustCreate(t, n, "whole", addMount(destination))
		mustCreate(t, n, "all-time", addMount(destination))
	}
	if _, ok := n.ledger.Get("part", "main"); ok {
		t.Error("a refused container holds a GPU")
	}
	always := newNode(t, func(n *node) { n.cfg.Injection.InterposeWholeGPUs = true })
	always.pod("whole", "main=16384")
	if _, err := always.create("whole", addMount("/etc")); err == nil {
		t.Error("a container with the interposer is created")
	}
}

func TestWaysAroundAreRefused(t *testing.T) {
	n := newNode(t)
	n.pod("none", "main")
	n.pod("some", "main=1024")
	for _, uid := range []string{"none", "some"} {
		for name, change := range map[string]func(*rspec.Spec){
			"volume":                        addMount("/var/run/nvidia-container-devices/all"),
			"volume, without var":           addMount("/run/nvidia-container-devices/0"),
			"annotation":                    func(s *rspec.Spec) { s.Annotations = map[string]string{"cdi.k8s.io/x": "a.b/c=d,nvidia.com/gpu=all"} },
			"our own device, by annotation": func(s *rspec.Spec) { s.Annotations = map[string]string{"cdi.k8s.io/x": adjust.EnvDevice(gpuB)} },
			"device node":                   addDevice("/dev/nvidia0"),
			"operator's annotation": func(s *rspec.Spec) {
				s.Annotations = map[string]string{"nvidia.cdi.k8s.io/x": "runtime.nvidia.com/gpu=0"}
			},
		} {
			if _, err := n.create(uid, change); err == nil {
				t.Errorf("%s of %s was not refused", name, uid)
			}
		}
	}
	harmless := func(s *rspec.Spec) { s.Annotations = map[string]string{"cdi.k8s.io/net": "example.com/nic=1"} }
	mustCreate(t, n, "none", harmless)
	mustCreate(t, n, "none", addDevice("/dev/fuse"))
	// A privileged container has every device node without a request for the nodes.
	mustCreate(t, n, "none", addDevice("/dev/kmsg", "/dev/nvidia0"))
}

func TestWhatCannotBeKnownIsRefused(t *testing.T) {
	n := newNode(t)
	if _, err := n.create("nobody"); err == nil || !strings.Contains(err.Error(), "no such pod") {
		t.Errorf("got %v", err)
	}
	n.pod("slow", "main=1024")
	n.api.change(func() { n.api.lagging["slow"] = true })
	wantEnv(t, mustCreate(t, n, "slow"), adjust.VisibleDevices, gpuA)

	n.api.change(func() { n.api.away = true })
	begin := time.Now()
	if _, err := n.create("nobody"); err == nil || !strings.Contains(err.Error(), "kubelet will retry") {
		t.Errorf("got %v", err)
	}
	if waited := time.Since(begin); waited > 2*time.Second {
		t.Errorf("the runtime's patience ended before ours: %v", waited)
	}
	if events := n.told.all(); len(events) != 0 {
		t.Errorf("Events about pods that the API server did not return: %q", events)
	}
	// A container keeps its allocation.
	wantEnv(t, mustCreate(t, n, "slow"), adjust.VisibleDevices, gpuA)
	// The API server may itself be a static pod.
	static := sandbox("hash")
	static.Annotations = map[string]string{pods.SourceAnnotation: "file"}
	spec, err := n.createIn(static, "kube-apiserver", addEnv(adjust.VisibleDevices+"=all"))
	if err != nil {
		t.Fatal(err)
	}
	wantEnv(t, spec, adjust.VisibleDevices, "void")
}

func TestBadRequestsAndFullGPUsAreRefused(t *testing.T) {
	n := newNode(t)
	pod := n.pod("two-dialects", "main=1024")
	limits := pod.Spec.Containers[0].Resources.Limits
	limits["alnair/vgpu-memory"] = limits["nri-vgpu.io/vgpu-memory"]
	n.pod("huge", "main=16385")
	for uid, want := range map[string]string{"two-dialects": "two dialects", "huge": "no GPU has room"} {
		_, err := n.create(uid)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v", uid, err)
		}
	}
}

func TestRestartKeepsTheGPUAndGetsFreshPages(t *testing.T) {
	n := newNode(t)
	n.pod("other", "main=16384")
	n.pod("u", "main=1024")
	mustCreate(t, n, "other")
	wantEnv(t, mustCreate(t, n, "u"), adjust.VisibleDevices, gpuB)
	usage := filepath.Join(n.cfg.Paths.RunDir, "containers/u/main/usage")
	before, err := os.Stat(usage)
	if err != nil {
		t.Fatal(err)
	}
	n.exit("u")
	n.exit("other")
	n.deletePod("other")
	wantEnv(t, mustCreate(t, n, "u"), adjust.VisibleDevices, gpuB)
	after, err := os.Stat(usage)
	if err != nil {
		t.Fatal(err)
	}
	if os.SameFile(before, after) {
		t.Error("the new instance counts on the old one's page")
	}
}

// TestReleasesAreReported checks that each release is reported at once, even if the container of a
// deleted pod ends later.
func TestReleasesAreReported(t *testing.T) {
	n := newNode(t)
	releases := 0
	n.hook.opts.Released = func() { releases++ }
	n.run("forced", "main=1024")
	n.deletePod("forced")
	if releases != 0 {
		t.Error("a release under a running container was reported")
	}
	n.exit("forced")
	if _, held := n.ledger.Get("forced", "main"); held || releases != 1 {
		t.Errorf("%d releases were reported, want 1; the pod holds its GPU: %t", releases, held)
	}
	n.hook.Sweep()
	if releases != 1 {
		t.Errorf("%d releases were reported after a sweep, want 1", releases)
	}
}

func TestGPUsAreFreedWhenThePodIsGone(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=1024")
	// A force-deleted pod's running container still holds the GPU.
	n.deletePod("u")
	n.hook.Sweep()
	if _, ok := n.ledger.Get("u", "main"); !ok {
		t.Fatal("freed under a running container")
	}
	n.exit("u")
	if _, ok := n.ledger.Get("u", "main"); ok {
		t.Error("not freed")
	}
	if n.hook.opts.Store.HasFiles("u") {
		t.Error("files are left")
	}

	n.run("sandboxed", "main=1024")
	n.deletePod("sandboxed")
	if err := n.runtime.StopPodSandbox(context.Background(), &api.StopPodSandboxRequest{Pod: sandbox("sandboxed")}); err != nil {
		t.Fatal(err)
	}
	if _, ok := n.ledger.Get("sandboxed", "main"); ok {
		t.Error("not freed with its sandbox")
	}

	n.run("missed", "main=1024")
	n.exit("missed")
	n.api.change(func() { delete(n.api.pods, "missed") })
	n.hook.Sweep()
	if _, ok := n.ledger.Get("missed", "main"); ok {
		t.Error("not freed by the sweep")
	}
}

func start(n *node, uid string, spec *rspec.Spec) error {
	pod := sandbox(uid)
	return n.runtime.StartContainer(context.Background(), &api.StartContainerRequest{Pod: pod, Container: fromSpec(pod, "main", spec)})
}

func TestStartOfAContainerCreatedWithoutUsIsRefused(t *testing.T) {
	n := newNode(t)
	n.pod("some", "main=1024")
	n.pod("none", "main")
	bare := &rspec.Spec{Process: &rspec.Process{}}
	if err := start(n, "some", bare); err == nil {
		t.Error("started without limits")
	}
	good := mustCreate(t, n, "some")
	if err := start(n, "some", good); err != nil {
		t.Error(err)
	}
	if err := start(n, "some", bare); err == nil {
		t.Error("started without the limits that it was given")
	}
	if err := start(n, "none", good); err == nil {
		t.Error("started with another's limits")
	}
	if err := start(n, "none", bare); err != nil {
		t.Error(err)
	}
	if err := start(n, "none", &rspec.Spec{Process: &rspec.Process{Env: []string{adjust.VisibleDevices + "=all"}}}); err == nil {
		t.Error("started with all GPUs")
	}
	invalid := n.pod("invalid", "main=1024")
	n.api.change(func() { invalid.Spec.Containers[0].Resources.Limits["alnair/vgpu-memory"] = resource.MustParse("1") })
	if err := start(n, "invalid", bare); err == nil {
		t.Error("started with an invalid request")
	}
}
