// SPDX-License-Identifier: Apache-2.0

// Package helm installs, upgrades, rolls back and uninstalls nri-vgpu with Helm on a real local
// node, under running pods. Running pods must continue undisturbed, and in the end no files or
// fields may remain.
package helm

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/releases"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	// namespace is the namespace of MetaGPU's README and of its example pod.
	namespace = "cnvrg"
	gpus      = 2
	gpuMemory = 16 << 30
	patience  = 2 * time.Minute
)

// previous is the commit from which the test upgrades.
var previous = flag.String("helm.previous", "", "the commit to upgrade from, such as HEAD~1; by default the recorded previous release")

// more enables the parts that take too long for every run.
var more = flag.Bool("helm.more", false, "also test the driver by a RuntimeClass, and the installation by the manifest")

func TestMain(m *testing.M) {
	cluster.Supervise()
	os.Exit(m.Run())
}

// suite is the test on its node.
type suite struct {
	*testing.T
	bed    *testbed.Bed
	source string
	helm   string
	home   string
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// say logs the progress with the time.
func (s *suite) say(format string, args ...any) {
	fmt.Printf("helm: %s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

// command returns a command against the cluster.
func (s *suite) command(program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(s.Context(), program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.bed.Cluster.Kubeconfig(), "HELM_CACHE_HOME="+s.home,
		"HELM_CONFIG_HOME="+s.home, "HELM_DATA_HOME="+s.home, "NO_PROXY=*", "no_proxy=*")
	return cmd
}

// run runs a program against the cluster.
func (s *suite) run(program string, args ...string) string {
	s.Helper()
	cmd := s.command(program, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		s.Fatalf("%s %s: %v\n%s%s", filepath.Base(program), strings.Join(args, " "), err, &errs, &out)
	}
	return out.String()
}

// helmDo runs helm on the release.
func (s *suite) helmDo(verb string, args ...string) {
	s.Helper()
	args = append([]string{verb, "nri-vgpu"}, args...)
	s.run(s.helm, append(args, "--namespace", namespace, "--wait", "--timeout", "5m")...)
}

// values returns the values with which each release is installed. The values make the agent end
// processes that bypass the interposer, so a false alarm disturbs pods.
func values(r releases.Release) []string {
	return []string{"--set", "image.tag=" + r.Version, "--set", "config.detection.action=stop"}
}

// release installs a release or upgrades to it.
func (s *suite) release(verb string, r releases.Release, args ...string) {
	s.Helper()
	s.helmDo(verb, slices.Concat([]string{r.Chart()}, values(r), args)...)
}

// rollback also undoes the test's changes by kubectl.
func (s *suite) rollback(revision string) {
	s.Helper()
	s.helmDo("rollback", revision, "--force-conflicts")
}

// this returns the release under test.
func (s *suite) this() releases.Release {
	return releases.Release{Version: version.Version, Dir: s.source}
}

func (s *suite) kubectl(args ...string) string {
	s.Helper()
	return s.run(s.bed.Kubectl(), args...)
}

// newSuite makes a node with a name, without any installation. The node has the images of this
// release and of another release.
func newSuite(t *testing.T, name string, build func(releases.Builder) (releases.Release, error)) (*suite, releases.Release) {
	source, err := testbed.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{T: t, source: source, home: t.TempDir()}
	if s.helm, err = components.HelmProgram(t.Context(), source, os.Stdout); err != nil {
		t.Fatal(err)
	}
	other, err := build(releases.Builder{Source: source, Log: s.say})
	s.must(err)
	nothing := func(context.Context, *testbed.Bed) error { return nil }
	s.bed, err = testbed.Up(t.Context(), testbed.Options{
		Name: name, Source: source, GPUs: gpus, GPUMemory: gpuMemory, Install: nothing, Log: s.say,
	})
	if s.bed != nil {
		t.Cleanup(func() {
			if err := s.bed.Down(t.Failed()); err != nil {
				t.Errorf("take the cluster down: %v", err)
			}
		})
	}
	s.must(err)
	s.bed = s.bed.At(namespace)
	s.must(s.bed.Cluster.LoadImage(t.Context(), other.Archive()))
	s.kubectl("create", "namespace", namespace)
	return s, other
}

// TestHelm upgrades from the previous release and back.
func TestHelm(t *testing.T) {
	s, old := newSuite(t, "helm", func(b releases.Builder) (releases.Release, error) {
		if *previous != "" {
			return b.Commit(t.Context(), *previous)
		}
		return b.Previous(t.Context())
	})
	now := s.this()
	s.runtimeClass()
	before := s.state()
	s.say("every chart of the golden files is valid to the API server")
	s.validate()
	s.say("the notes report that no node has a label of the chart")
	s.label("nri-vgpu.io/gpu-")
	s.notes("WARNING: nri-vgpu runs on no node", now)
	s.label("nri-vgpu.io/gpu=true")
	s.say("installing %s", old.Version)
	s.release("install", old)
	s.must(s.bed.WaitAdvertised(t.Context()))
	s.loadGuard()
	w := s.startWork("")

	s.refusals(now)
	s.say("upgrading to %s", now.Version)
	s.release("upgrade", now, "--set", "config.log.level=debug")
	w.check()
	w.watch.stopAfter(old)
	w.watch = s.watchNode()
	s.checkRuns(now.Version)
	s.fits("new")
	s.guardIs(old)
	s.checkGuard("new-agent-old-guard")
	modern := s.startWork("-new")
	w.mix(old, now)

	s.say("rolling back")
	s.rollback("1")
	w.check()
	modern.check()
	modern.restart()
	modern.end()
	s.checkRuns(old.Version)
	s.fits("old")
	w.checkPages()
	w.watch.stopAfter(old)
	s.loadGuard()
	s.kubectl("-n", namespace, "delete", "configmap", configOf(old), configOf(now))

	s.say("changing the configuration")
	s.release("upgrade", now, "--set", "config.node.slots_per_gpu=20", "--force-conflicts")
	s.waitSlots(20)
	s.metaGPU()
	if *more {
		s.byRuntimeClass(w)
	}
	s.say("uninstalling under pods that run")
	s.helmDo("uninstall")
	w.check()
	s.checkLeft(before, w)
	w.checkClosed()

	s.say("the last pods go")
	w.end()
	s.checkNothingLeft(before)
	if *more {
		s.byKubectl()
	}
}

// label sets or removes a label of the node.
func (s *suite) label(label string) {
	s.Helper()
	s.kubectl("label", "--overwrite", "node", s.bed.Cluster.NodeName, label)
}

// notes checks that the notes of an installation contain a text.
func (s *suite) notes(want string, r releases.Release) {
	s.Helper()
	out := s.run(s.helm, "install", "nri-vgpu", r.Chart(), "--namespace", namespace, "--dry-run=server", "--set", "image.tag="+r.Version)
	if !strings.Contains(out, want) {
		s.Errorf("the notes lack %q:\n%s", want, out[max(0, len(out)-2000):])
	}
}

// refusals checks that helm refuses a second release in the cluster, and an upgrade that would take
// the agent from a node with GPUs. The old release runs on nodes without labels.
func (s *suite) refusals(now releases.Release) {
	s.Helper()
	s.say("helm refuses a second release, and an upgrade that would take the agent from a node")
	s.refuses([]string{"already in this cluster", "of release nri-vgpu", "config.pool"},
		"install", "other", now.Chart(), "--namespace", "default", "--set", "fullnameOverride=other")
	s.label("nri-vgpu.io/gpu-")
	s.refuses([]string{"1 nodes offer GPUs and would lose the agent", s.bed.Cluster.NodeName, "nri-vgpu.io/gpu=true"},
		"upgrade", "nri-vgpu", now.Chart(), "--namespace", namespace)
	s.label("nri-vgpu.io/gpu=true")
}

// refuses checks that helm fails, with an error that contains the texts.
func (s *suite) refuses(wants []string, args ...string) {
	s.Helper()
	cmd := s.command(s.helm, args...)
	out, err := cmd.CombinedOutput()
	for _, want := range wants {
		if err == nil || !strings.Contains(string(out), want) {
			s.Errorf("helm %s: %v, without %q:\n%s", strings.Join(args, " "), err, want, out)
		}
	}
}

// metaGPU runs the example pod of MetaGPU's README in the namespace of the release. According to
// the oracle, the pod must get the part of a GPU that the pod requests.
func (s *suite) metaGPU() {
	s.Helper()
	const part = gpuMemory * 30 / 100
	s.say("running the example of MetaGPU's README beside the agent")
	raw, err := os.ReadFile(filepath.Join(s.source, "test", "e2e", "testdata", "readmes", "metagpu.yaml"))
	s.must(err)
	var pod corev1.Pod
	s.must(yaml.UnmarshalStrict(raw, &pod))
	if pod.Namespace != namespace {
		s.Fatalf("the example is in namespace %s", pod.Namespace)
	}
	there := s.bed.In(namespace)
	_, err = there.Create(s.Context(), &pod)
	s.must(err)
	made, err := there.WaitRunning(s.Context(), pod.Name, patience)
	s.must(err)
	held := func() (sum uint64) {
		byGPU, err := there.Held(made)
		s.must(err)
		for bytes := range maps.Values(byGPU) {
			sum += bytes
		}
		return sum
	}
	eventually.Holds(s, patience, "the example holds its part of a GPU, and no more", func() bool { return held() >= part-2<<20 })
	if bytes := held(); bytes > part {
		s.Errorf("the example holds %d bytes, and requests %d", bytes, part)
	}
	s.must(there.Delete(s.Context(), pod.Name))
}

// byKubectl installs and uninstalls nri-vgpu by the rendered manifests, with the commands of
// docs/how-to.
func (s *suite) byKubectl() {
	s.say("installing by the manifest")
	s.kubectl("delete", "namespace", namespace)
	before := s.state()
	manifest, uninstall := filepath.Join(s.source, "deploy", "nri-vgpu.yaml"), filepath.Join(s.source, "deploy", "uninstall.yaml")
	s.kubectl("apply", "-f", manifest)
	s.must(s.bed.WaitAdvertised(s.Context()))
	s.fits("by-manifest")
	s.say("uninstalling it")
	s.kubectl("-n", testbed.Namespace, "delete", "daemonset", "nri-vgpu", "extended-resource-patcher")
	s.kubectl("-n", testbed.Namespace, "wait", "--for=delete", "pod", "--timeout=2m", "-l", "app.kubernetes.io/name in (nri-vgpu, extended-resource-patcher)")
	s.kubectl("apply", "-f", uninstall)
	s.kubectl("-n", testbed.Namespace, "rollout", "status", "daemonset/nri-vgpu-cleanup", "--timeout=2m")
	s.kubectl("delete", "-f", uninstall, "-f", manifest, "--ignore-not-found")
	s.checkNothingLeft(before)
}

// waitSlots waits until the Node offers the number of slots in the release's values, less up to five
// for each GPU that pods use.
func (s *suite) waitSlots(perGPU int64) {
	s.Helper()
	s.must(s.bed.WaitNode(s.Context(), patience, func(node *corev1.Node) bool {
		slots := node.Status.Allocatable[testbed.Number]
		return slots.Value() <= gpus*perGPU && slots.Value() > gpus*(perGPU-5)
	}))
}

// checkRuns checks that agent and patcher have this version.
func (s *suite) checkRuns(want string) {
	s.Helper()
	out := s.kubectl("-n", namespace, "get", "pods", "-o", "jsonpath={.items[*].spec.containers[*].image}")
	for image := range strings.FieldsSeq(out) {
		if image != version.Image(want) {
			s.Errorf("%s runs, want version %s", image, want)
		}
	}
}

// loadGuard restarts the runtime once, as the notes of the chart instruct.
func (s *suite) loadGuard() {
	s.must(s.bed.Cluster.Restart(s.Context(), cluster.Containerd))
	s.must(s.bed.WaitNodeReady(s.Context(), patience))
	eventually.Holds(s, patience, "the guard runs", func() bool { return len(s.guards()) == 2 })
	s.must(s.bed.WaitAdvertised(s.Context()))
}

// byRuntimeClass upgrades once more, to an agent that gets the driver from NVIDIA's runtime.
func (s *suite) byRuntimeClass(w *work) {
	s.say("upgrading again, with the driver by a RuntimeClass")
	s.release("upgrade", s.this(), "--set", "driver.runtimeClassName=nvidia")
	w.check()
	s.fits("by-class")
}

// runtimeClass creates a RuntimeClass for the node's NVIDIA runtime, as NVIDIA's operator does.
func (s *suite) runtimeClass() {
	_, err := s.bed.Client.NodeV1().RuntimeClasses().Create(s.Context(), &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "nvidia"}, Handler: "nvidia",
	}, metav1.CreateOptions{})
	s.must(err)
}

// fits runs a pod with a part of a GPU to its end.
func (s *suite) fits(name string) {
	s.Helper()
	_, err := s.bed.Create(s.Context(), testbed.Pod(name, testbed.Container("main", testbed.Limits{testbed.Memory: 1024}, "fill")))
	s.must(err)
	_, err = s.bed.WaitSucceeded(s.Context(), name, patience)
	s.must(err)
	var fill testbed.Fill
	s.must(s.bed.WaitResult(s.Context(), name, "main", patience, &fill))
	if fill.TotalBytes != 1<<30 {
		s.Errorf("a new pod saw %d bytes, want 1 GiB", fill.TotalBytes)
	}
	s.must(s.bed.Delete(s.Context(), name))
}

// validate makes the API server check the chart's objects by its own schemas, with the values of the
// golden files and of deploy/systems.
func (s *suite) validate() {
	golden, err := filepath.Glob(filepath.Join(s.source, "deploy", "render", "testdata", "*.golden"))
	s.must(err)
	if len(golden) < 3 {
		s.Fatalf("there are only %d golden files", len(golden))
	}
	s.kubectl("create", "namespace", "gpus")
	s.kubectl("create", "namespace", testbed.Namespace)
	var charts []string
	for _, file := range golden {
		content, err := os.ReadFile(file)
		s.must(err)
		charts = append(charts, string(content))
	}
	systems, err := filepath.Glob(filepath.Join(s.source, "deploy", "systems", "*.yaml"))
	s.must(err)
	for _, values := range systems {
		charts = append(charts, s.run(s.helm, "template", "nri-vgpu", s.this().Chart(), "--namespace", testbed.Namespace, "--values", values))
	}
	for _, content := range charts {
		var known []string
		for document := range strings.SplitSeq(content, "\n---\n") {
			// Prometheus' operator is not installed.
			if !strings.Contains(document, "apiVersion: monitoring.coreos.com/") {
				known = append(known, document)
			}
		}
		path := filepath.Join(s.TempDir(), "chart.yaml")
		s.must(os.WriteFile(path, []byte(strings.Join(known, "\n---\n")), 0o600))
		s.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", path)
	}
	// The test waits for the end of the namespaces later.
	s.kubectl("delete", "--wait=false", "namespace", "gpus", testbed.Namespace)
}

// describe returns a pod's state for errors.
func describe(pod *corev1.Pod) string { return testbed.Describe(pod) }

// pause waits between two checks of the whole state.
func (s *suite) pause() {
	select {
	case <-s.Context().Done():
	case <-time.After(time.Second):
	}
}
