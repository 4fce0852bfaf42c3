// Package helm installs nri-vgpu with Helm on a real local node, upgrades it under
// pods that run, rolls it back and uninstalls it. Who runs may not notice, and in
// the end nothing may be left.
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
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/pkg/version"
	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	// namespace is where MetaGPU's README installs, and runs its example pod.
	namespace = "cnvrg"
	gpus      = 2
	gpuMemory = 16 << 30
	patience  = 2 * time.Minute
)

// previous is what is upgraded from: a commit of which everything is built, or by
// default this one under the name of another version.
var previous = flag.String("helm.previous", "", "the commit to upgrade from, such as HEAD~1; by default this one under another version's name")

// more is what takes too long for every run.
var more = flag.Bool("helm.more", false, "also give the agent the driver by a RuntimeClass, and install by the manifest")

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

func (s *suite) eventually(what string, ok func() bool) {
	s.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if ok() {
			return
		}
	}
	s.Fatalf("not within %v: %s", patience, what)
}

// say tells the progress, and when.
func (s *suite) say(format string, args ...any) {
	fmt.Printf("helm: %s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

// run runs a program against the cluster.
func (s *suite) run(program string, args ...string) string {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.bed.Cluster.Kubeconfig(), "HELM_CACHE_HOME="+s.home,
		"HELM_CONFIG_HOME="+s.home, "HELM_DATA_HOME="+s.home, "NO_PROXY=*", "no_proxy=*")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		s.Fatalf("%s %s: %v\n%s%s", filepath.Base(program), strings.Join(args, " "), err, &errs, &out)
	}
	return out.String()
}

// release runs helm on the release.
func (s *suite) release(verb string, args ...string) {
	s.Helper()
	args = append([]string{verb, "nri-vgpu"}, args...)
	s.run(s.helm, append(args, "--namespace", namespace, "--wait", "--timeout", "5m")...)
}

func (s *suite) kubectl(args ...string) string {
	s.Helper()
	return s.run(s.bed.Kubectl(), args...)
}

func TestHelm(t *testing.T) {
	source, err := testbed.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{T: t, source: source, home: t.TempDir()}
	if s.helm, err = components.HelmProgram(t.Context(), source, os.Stdout); err != nil {
		t.Fatal(err)
	}
	old := s.buildPrevious()
	nothing := func(context.Context, *testbed.Bed) error { return nil }
	s.bed, err = testbed.Up(t.Context(), testbed.Options{
		Name: "helm", Source: source, GPUs: gpus, GPUMemory: gpuMemory, Install: nothing,
		Log: func(format string, args ...any) { s.say(format, args...) },
	})
	if s.bed != nil {
		t.Cleanup(func() {
			if err := s.bed.Down(t.Failed()); err != nil {
				t.Errorf("take the cluster down: %v", err)
			}
		})
	}
	s.must(err)
	s.must(s.bed.Cluster.LoadImage(t.Context(), old.archive))
	s.kubectl("create", "namespace", namespace)

	s.runtimeClass()
	before := s.state()
	s.say("every chart of the golden files is valid to the API server")
	s.validate()
	s.say("installing %s", old.version)
	s.release("install", old.chart, "--set", "image.tag="+old.version)
	s.must(s.bed.WaitAdvertised(t.Context()))
	s.loadGuard()
	w := s.startWork()

	s.say("upgrading to %s", version.Version)
	s.release("upgrade", filepath.Join(source, "deploy", "chart"), "--set", "image.tag="+version.Version,
		"--set", "config.node.slots_per_gpu=20", "--set", "config.log.level=debug")
	w.check()
	s.checkRuns(version.Version)
	s.waitSlots(20)
	s.fits("new")
	s.metaGPU()

	s.say("rolling back")
	s.release("rollback", "1")
	w.check()
	s.checkRuns(old.version)
	s.waitSlots(10)
	s.fits("old")

	if *more {
		s.byRuntimeClass(w)
	}
	s.say("uninstalling under pods that run")
	s.release("uninstall")
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

// metaGPU runs the example pod of MetaGPU's README, which is in the namespace of the
// release. By the oracle it may have the part of a GPU that it asks for.
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
	s.eventually("the example holds its part of a GPU, and no more", func() bool { return held() >= part-2<<20 })
	if bytes := held(); bytes > part {
		s.Errorf("the example holds %d bytes, and asks for %d", bytes, part)
	}
	s.must(there.Delete(s.Context(), pod.Name))
}

// byKubectl installs and uninstalls by the rendered manifests, with the commands of
// docs/operations.md.
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

// waitSlots waits until the Node offers as many parts of its GPUs as the release's
// values say, less those of pods in the tens.
func (s *suite) waitSlots(perGPU int64) {
	s.Helper()
	s.must(s.bed.WaitNode(s.Context(), patience, func(node *corev1.Node) bool {
		slots := node.Status.Allocatable[testbed.Number]
		return slots.Value() <= gpus*perGPU && slots.Value() > gpus*(perGPU-5)
	}))
}

// checkRuns checks that agent and patcher are of this version.
func (s *suite) checkRuns(want string) {
	s.Helper()
	out := s.kubectl("-n", namespace, "get", "pods", "-o", "jsonpath={.items[*].spec.containers[*].image}")
	for image := range strings.FieldsSeq(out) {
		if image != version.Image(want) {
			s.Errorf("%s runs, want version %s", image, want)
		}
	}
}

// loadGuard restarts the runtime once, as the notes of the chart say.
func (s *suite) loadGuard() {
	s.must(s.bed.Cluster.Restart(s.Context(), cluster.Containerd))
	s.must(s.bed.WaitNodeReady(s.Context(), patience))
	s.eventually("the guard runs", func() bool { return len(s.guards()) == 2 })
	s.must(s.bed.WaitAdvertised(s.Context()))
}

// byRuntimeClass upgrades once more, to an agent that has the driver from NVIDIA's
// runtime.
func (s *suite) byRuntimeClass(w *work) {
	s.say("upgrading again, with the driver by a RuntimeClass")
	s.release("upgrade", filepath.Join(s.source, "deploy", "chart"), "--set", "image.tag="+version.Version,
		"--set", "driver.runtimeClassName=nvidia")
	w.check()
	s.fits("by-class")
}

// runtimeClass names the node's NVIDIA runtime, as NVIDIA's operator does.
func (s *suite) runtimeClass() {
	_, err := s.bed.Client.NodeV1().RuntimeClasses().Create(s.Context(), &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "nvidia"}, Handler: "nvidia",
	}, metav1.CreateOptions{})
	s.must(err)
}

// fits runs a pod to its end that is given a part of a GPU.
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

// validate has the API server check what the chart makes, by its own schemas.
func (s *suite) validate() {
	golden, err := filepath.Glob(filepath.Join(s.source, "deploy", "render", "testdata", "*.golden"))
	s.must(err)
	if len(golden) < 3 {
		s.Fatalf("there are only %d golden files", len(golden))
	}
	s.kubectl("create", "namespace", "gpus")
	for _, file := range golden {
		content, err := os.ReadFile(file)
		s.must(err)
		var known []string
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			// Prometheus' operator is not installed.
			if !strings.Contains(document, "apiVersion: monitoring.coreos.com/") {
				known = append(known, document)
			}
		}
		path := filepath.Join(s.TempDir(), "chart.yaml")
		s.must(os.WriteFile(path, []byte(strings.Join(known, "\n---\n")), 0o600))
		s.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", path)
	}
	// That it goes is waited for in the end.
	s.kubectl("delete", "namespace", "gpus", "--wait=false")
}

// build is what is upgraded from.
type build struct{ version, archive, chart string }

func (s *suite) buildPrevious() build {
	if *previous == "" {
		return s.buildAgain()
	}
	return s.buildCommit(*previous)
}

// buildAgain builds the programs of this commit under another version's name.
func (s *suite) buildAgain() build {
	b := build{version: "0.0.1-previous", chart: filepath.Join(s.source, "deploy", "chart")}
	dir := filepath.Join(s.source, "build", "previous")
	s.say("building this commit as %s", b.version)
	s.must(os.RemoveAll(dir))
	s.must(os.MkdirAll(dir, 0o755))
	s.must(os.Symlink(filepath.Join(s.source, "build", "lib"), filepath.Join(dir, "lib")))
	s.goBuild("1", dir, b.version, "./cmd/nri-vgpu")
	s.goBuild("0", dir, b.version, "./cmd/extended-resource-patcher", "./cmd/vgpuctl", "./cmd/nri-vgpu-guard")
	b.archive = s.makeImage(dir, b.version)
	return b
}

// buildCommit builds all of another commit.
func (s *suite) buildCommit(commit string) build {
	dir := filepath.Join(s.TempDir(), "previous")
	run := func(name string, args ...string) string {
		cmd := exec.CommandContext(s.Context(), name, args...)
		cmd.Dir = s.source
		out, err := cmd.CombinedOutput()
		if err != nil {
			s.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	b := build{version: "0.0.1-" + run("git", "rev-parse", "--short", commit), chart: filepath.Join(dir, "deploy", "chart")}
	s.say("building %s", b.version)
	run("git", "worktree", "add", "--detach", dir, commit)
	s.Cleanup(func() {
		_ = exec.Command("git", "-C", s.source, "worktree", "remove", "--force", dir).Run()
	})
	run("make", "-C", dir, "image", "VERSION="+b.version)
	b.archive = filepath.Join(dir, "build", "image", "nri-vgpu.tar")
	return b
}

// goBuild builds programs as the Makefile does.
func (s *suite) goBuild(cgo, dir, of string, packages ...string) {
	args := []string{"build", "-trimpath", "-ldflags", "-s -w -X github.com/nri-vgpu/nri-vgpu/pkg/version.Version=" + of,
		"-o", filepath.Join(dir, "bin") + "/"}
	cmd := exec.CommandContext(s.Context(), "go", append(args, packages...)...)
	cmd.Dir = s.source
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("build %s: %v\n%s", strings.Join(packages, " "), err, out)
	}
}

func (s *suite) makeImage(dir, of string) string {
	archive := filepath.Join(dir, "image.tar")
	cmd := exec.CommandContext(s.Context(), "go", "run", "./deploy/image", "--build", dir, "--version", of, "--output", archive)
	cmd.Dir = s.source
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("make the image: %v\n%s", err, out)
	}
	return archive
}

// describe is for errors.
func describe(pod *corev1.Pod) string { return testbed.Describe(pod) }

// pause is between two looks at everything.
func (s *suite) pause() {
	select {
	case <-s.Context().Done():
	case <-time.After(time.Second):
	}
}
