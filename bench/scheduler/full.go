// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/test/cluster"
)

const (
	gpus      = 8
	gpuMemory = 16 << 10 // MiB
	asked     = 4 << 10  // MiB
	memory    = "nri-vgpu.io/vgpu-memory"
	// patience is the time within which the scheduler must bind a pod.
	patience = 2 * time.Minute
	// clients is the number of objects that inParallel creates at a time.
	clients = 16
)

// full is an API server with Nodes and bound pods.
type full struct {
	*cluster.Cluster
	api *kubernetes.Clientset
	dir string
}

// newFull starts an API server without other components of Kubernetes.
func newFull(ctx context.Context, dir string, options cluster.Options) (*full, error) {
	options.Name, options.Out = "bench-scheduler", os.Stderr
	c, err := cluster.Up(ctx, options)
	if err != nil {
		return nil, err
	}
	for _, component := range []string{cluster.Kubelet, cluster.Scheduler, cluster.ControllerManager, cluster.Containerd} {
		if err := c.Stop(ctx, component); err != nil {
			return nil, errors.Join(err, c.Down())
		}
	}
	config := c.RestConfig()
	config.QPS = -1
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, errors.Join(err, c.Down())
	}
	return &full{Cluster: c, api: api, dir: dir}, nil
}

// fill measures the scheduler in a full cluster, with and without the plugin.
func (r *result) fill(ctx context.Context, o options, temp string) (err error) {
	f, err := newFull(ctx, temp, cluster.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Down()) }()
	if err := errors.Join(f.createNodes(ctx, o.nodes), f.createPods(ctx, o)); err != nil {
		return err
	}
	program := filepath.Join(o.build, "bin", scheduler)
	if r.BaselineRSS, r.BaselineRebuild, err = f.start(ctx, program, "kube-scheduler", inTree); err != nil {
		return fmt.Errorf("measure without the plugin: %w", err)
	}
	if r.RSS, r.Rebuild, err = f.start(ctx, program, scheduler, withVGPU); err != nil {
		return fmt.Errorf("measure with the plugin: %w", err)
	}
	return nil
}

// cards returns the GPUs of each node.
func cards() (gpus8 []gpu.GPU) {
	for i := range gpus {
		gpus8 = append(gpus8, gpu.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, Name: "NVIDIA H200", MemoryBytes: gpuMemory << 20, Healthy: true})
	}
	return gpus8
}

func (f *full) createNodes(ctx context.Context, count int) error {
	amounts := corev1.ResourceList{
		corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("512Gi"),
		memory: *resource.NewQuantity(gpus*gpuMemory, resource.DecimalSI),
	}
	return inParallel(ctx, "nodes", count, func(ctx context.Context, i int) error {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Annotations: map[string]string{assign.GPUsAnnotation: assign.FormatGPUs(cards())}},
			Status: corev1.NodeStatus{
				Capacity: amounts, Allocatable: amounts,
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		}
		_, err := f.api.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		return err
	})
}

// createPods creates pods that are already bound.
func (f *full) createPods(ctx context.Context, o options) error {
	return inParallel(ctx, "pods", o.pods, func(ctx context.Context, i int) error {
		pod := newPod(fmt.Sprint("bound-", i))
		pod.Spec.NodeName = nodeName(i % o.nodes)
		pod.Annotations = map[string]string{assign.Annotation: fmt.Sprintf(`{"main":["GPU-%d"]}`, i/o.nodes%gpus)}
		_, err := f.api.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
}

func nodeName(i int) string { return fmt.Sprint("node-", i) }

func newPod(name string) *corev1.Pod {
	amounts := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("500Mi"),
		memory: *resource.NewQuantity(asked, resource.DecimalSI),
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "measured"}},
		Spec: corev1.PodSpec{
			// The API server taints new Nodes as not ready.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.k8s.io/pause:3.10", Resources: corev1.ResourceRequirements{Limits: amounts, Requests: amounts},
			}},
		},
	}
}

// inParallel calls create for each number below count, and shows the progress.
func inParallel(ctx context.Context, what string, count int, create func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(clients)
	for i := range count {
		if i%5000 == 0 {
			fmt.Fprintf(os.Stderr, "create %s: %d of %d\n", what, i, count)
		}
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return create(ctx, i) })
	}
	return group.Wait()
}

// goMemoryLimit returns GOMEMLIMIT of the chart.
func goMemoryLimit() (string, error) {
	text, err := os.ReadFile(filepath.Join("deploy", "chart", "values.yaml"))
	if err != nil {
		return "", err
	}
	var values struct {
		Scheduler struct {
			GoMemoryLimit string `json:"goMemoryLimit"`
		} `json:"scheduler"`
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		return "", fmt.Errorf("read the values of the chart: %w", err)
	}
	return values.Scheduler.GoMemoryLimit, nil
}

// settings are a KubeSchedulerConfiguration.
type settings map[string]any

// withVGPU returns the settings for the throughput benchmark: the chart's profile, for pods that
// name no scheduler.
func withVGPU() (s settings, err error) {
	text, err := os.ReadFile("scheduler/perf/testdata/scheduler.yaml")
	if err != nil {
		return nil, err
	}
	return s, yaml.Unmarshal(text, &s)
}

// inTree returns the settings of kube-scheduler without profiles.
func inTree() (settings, error) {
	return settings{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}, nil
}

// write writes the settings to a file, together with the settings of the connection and of the
// leader election.
func (s settings) write(file string, connection, election map[string]any) error {
	s["clientConnection"], s["leaderElection"] = connection, election
	text, err := yaml.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// start starts the program with a waiting pod. start returns the program's peak resident memory in
// MiB, and the seconds until the program has bound the pod.
func (f *full) start(ctx context.Context, program, name string, read func() (settings, error)) (rss, seconds float64, err error) {
	fmt.Fprintf(os.Stderr, "start %s\n", name)
	pods := f.api.CoreV1().Pods(metav1.NamespaceDefault)
	if _, err := pods.Create(ctx, newPod(name), metav1.CreateOptions{}); err != nil {
		return 0, 0, err
	}
	file := filepath.Join(f.dir, name+".yaml")
	configuration, err := read()
	if err != nil {
		return 0, 0, err
	}
	if err := configuration.write(file, map[string]any{"kubeconfig": f.Kubeconfig()}, map[string]any{"leaderElect": false}); err != nil {
		return 0, 0, err
	}
	limit, err := goMemoryLimit()
	if err != nil {
		return 0, 0, err
	}
	var log bytes.Buffer
	scheduler := exec.CommandContext(ctx, program, "--config="+file, "--secure-port=0")
	scheduler.Env = append(os.Environ(), "GOMEMLIMIT="+limit)
	scheduler.Stdout, scheduler.Stderr = &log, &log
	begin := time.Now()
	if err := scheduler.Start(); err != nil {
		return 0, 0, err
	}
	defer func() {
		err = errors.Join(err, scheduler.Process.Signal(syscall.SIGTERM))
		_ = scheduler.Wait() // the signal ends the program with an error
		if err != nil {
			err = fmt.Errorf("%w; its log ends with: %s", err, lastLines(log.String(), 10))
		}
	}()
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Spec.NodeName != "", err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("wait for a binding: %w", err)
	}
	seconds = time.Since(begin).Seconds()
	rss, err = peakMiB(scheduler.Process.Pid)
	return rss, seconds, err
}

// peakMiB returns a process's peak of resident memory.
func peakMiB(pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
			return kib / 1024, err
		}
	}
	return 0, errors.New("the kernel reports no peak of resident memory")
}
