// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
)

func TestChooseLink(t *testing.T) {
	first, err := chooseLink("demo", nil)
	if err != nil {
		t.Fatal(err)
	}
	if !linkRange.Overlaps(first.node) || first.machine.Masked() != first.node.Masked() || first.machine == first.node {
		t.Errorf("addresses %s and %s", first.machine, first.node)
	}
	taken := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), first.node.Masked()}
	second, err := chooseLink("demo", taken)
	if err != nil {
		t.Fatal(err)
	}
	if second.node.Overlaps(first.node) {
		t.Errorf("%s was taken again", first.node)
	}
	if len(second.device) > 15 {
		t.Errorf("the kernel takes no device name as long as %q", second.device)
	}
	if _, err := chooseLink("demo", []netip.Prefix{linkRange}); err == nil {
		t.Error("an address was found where none is free")
	}
}

func TestWorkersHavePodsOfTheirOwn(t *testing.T) {
	first, err := chooseLink("demo", nil)
	if err != nil {
		t.Fatal(err)
	}
	taken := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), first.pods}
	for range 3 {
		pods, err := choosePods(taken)
		if err != nil {
			t.Fatal(err)
		}
		if !free(pods, taken) || !netip.MustParsePrefix(podRange).Overlaps(pods) {
			t.Errorf("pods %s, taken are %s", pods, taken)
		}
		taken = append(taken, pods)
	}
	if _, err := choosePods([]netip.Prefix{netip.MustParsePrefix(podRange)}); err == nil {
		t.Error("a range was found where none is free")
	}
}

func TestWorkerRunsNoControlPlane(t *testing.T) {
	p := plan{Options: Options{Name: "worker", Control: &Cluster{Address: "198.18.0.2"}}}
	var err error
	if p.link, err = chooseLink("worker", nil); err != nil {
		t.Fatal(err)
	}
	s := p.spec()
	var names []string
	for _, c := range s.Components {
		names = append(names, c.Name)
	}
	if !slices.Equal(names, []string{Containerd, Kubelet}) || s.Services != "" || len(s.Routes) != 2 || p.server() != "https://198.18.0.2" {
		t.Errorf("components %v, service address %q, routes %v, server %s", names, s.Services, s.Routes, p.server())
	}
}

// TestRuntimeOfTheNode checks that a directory with CRI-O's programs replaces containerd.
func TestRuntimeOfTheNode(t *testing.T) {
	for dir, want := range map[string]struct{ name, socket string }{
		"":     {Containerd, containerdSocket},
		"/bin": {CRIO, crioSocket},
	} {
		p := plan{Options: Options{Name: "node", CRIO: dir, Control: &Cluster{Address: "198.18.0.2"}}}
		all := p.components()
		if all[0].Name != want.name || all[0].Ready.Socket != want.socket || !slices.Equal(all[1].After, []string{want.name}) {
			t.Errorf("directory %q: components %+v, want %s", dir, all, want.name)
		}
	}
	if _, err := crioPrograms(t.TempDir()); err == nil || !strings.Contains(err.Error(), "crio") {
		t.Errorf("an empty directory: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"upper case":         {Name: "Demo"},
		"path":               {Name: "../x"},
		"long":               {Name: strings.Repeat("a", 41)},
		"colon in directory": {Name: "a", StateDir: "/a:b"},
		"directory too long": {Name: "a", StateDir: "/" + strings.Repeat("a", 90)},
		"trailing dash":      {Name: "a-"},
	} {
		if _, err := o.complete(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	o, err := Options{}.complete()
	if err != nil || o.Name != DefaultName || o.StateDir != DefaultStateDir(DefaultName) {
		t.Errorf("defaults %+v, %v", o, err)
	}
}

func TestDownRefusesForeignDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := refuseForeign(dir); err == nil || !strings.Contains(err.Error(), "thesis.tex") {
		t.Errorf("error %v", err)
	}
	if err := refuseForeign(filepath.Join(dir, "none")); err != nil {
		t.Errorf("a directory that is not there: %v", err)
	}
}

func TestParseStat(t *testing.T) {
	line := "7 (a) b (c)) S 1 7 7 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 9\n"
	state, start, err := parseStat([]byte(line))
	if err != nil || state != 'S' || start != 4711 {
		t.Errorf("state %c, start %d, %v", state, start, err)
	}
	for _, broken := range []string{"", "7 (a) S 1", "7 (a) S 1 7 7 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 x"} {
		if _, _, err := parseStat([]byte(broken)); err == nil {
			t.Errorf("%q: no error", broken)
		}
	}
}

func TestAlive(t *testing.T) {
	_, start, err := processState(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !alive(os.Getpid(), start) {
		t.Error("this process is not alive")
	}
	if alive(os.Getpid(), start+1) {
		t.Error("another process with this pid is taken for this one")
	}
}

func TestInnermostPid(t *testing.T) {
	for status, want := range map[string]int{
		"Name:\tx\nNSpid:\t4711\t12\n": 12,
		"NSpid:\t4711\n":               4711,
		"Name:\tx\n":                   0,
	} {
		if got := innermostPid(status); got != want {
			t.Errorf("%q: %d, want %d", status, got, want)
		}
	}
}

func TestNodeReady(t *testing.T) {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	for name, c := range map[string]struct {
		node corev1.Node
		want bool
	}{
		"ready":   {corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}}}, true},
		"unknown": {corev1.Node{}, false},
		"tainted": {corev1.Node{
			Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeNotReady}}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}},
		}, false},
	} {
		if err := nodeReady(&c.node); (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestConfigurationsParse checks that components report a mistake in their configuration only when
// they start.
func TestConfigurationsParse(t *testing.T) {
	configs := map[string]string{"nvidia-container-runtime": nvidiaRuntimeConfig, "crio": crioConfig(), "storage": imageStorage}
	for line := range components.ContainerdVersions {
		configs["containerd "+line] = containerdConfig(line, false)
	}
	for name, text := range configs {
		var v map[string]any
		if _, err := toml.Decode(text, &v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, text := range map[string]string{"kubelet": kubeletConfiguration(crioSocket), "cni": cniConfig("10.244.7.0/24")} {
		var v map[string]any
		if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !strings.Contains(containerdConfig("", false), "restrict_oom_score_adj = true") {
		t.Error("without CAP_SYS_RESOURCE, runc must not be asked to lower oom_score_adj")
	}
}

func TestSpecNamesEveryProgram(t *testing.T) {
	p := plan{Options: Options{Name: "a", StateDir: "/s"}}
	p.Binaries = map[string]string{"runc": "/c/runc", "kubelet": "/c/kubelet", "bridge": "/c/bridge"}
	targets := map[string]string{}
	for _, b := range p.spec().Binds {
		targets[b.Source] = b.Target
	}
	for source, want := range map[string]string{
		"/c/kubelet": "/usr/local/bin/kubelet", "/c/bridge": "/opt/cni/bin/bridge", "/c/runc": "",
	} {
		if targets[source] != want {
			t.Errorf("%s is mounted on %q, want %q", source, targets[source], want)
		}
	}
	if got := p.copies(); got[runcPath] != "/c/runc" || len(got) != 1 {
		t.Errorf("copies %v", got)
	}
	p.Binaries[components.ReducedRunc] = "/c/shim"
	if got := p.copies(); got[runcPath] != "/c/shim" || got[runcBehind] != "/c/runc" {
		t.Errorf("copies %v", got)
	}
}

func TestTail(t *testing.T) {
	if got := tail("a\nb\nc\n", 2); got != "  b\n  c" {
		t.Errorf("tail %q", got)
	}
}

func TestErrNotRunning(t *testing.T) {
	if _, err := Find(Options{Name: "nonesuch", StateDir: t.TempDir()}); !errors.Is(err, ErrNotRunning) {
		t.Errorf("error %v", err)
	}
}
