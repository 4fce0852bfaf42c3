// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/image"
)

// installPatience bounds the time from applying the manifest until the node advertises its
// capacity, on a busy machine of two cores.
const installPatience = 2 * time.Minute

// workloadPrograms are this machine's programs in the workload images, besides the workloads.
var workloadPrograms = []string{"sh", "cat", "env", "ls", "sleep", "grep", "mv", "rm", "dd", "fallocate"}

// Up makes a cluster, which replaces a cluster of the same name. Up installs nri-vgpu on the
// cluster as a user would: first the image, then the manifest. The caller must have built the
// programs of the repository and the image.
func Up(ctx context.Context, options Options) (*Bed, error) {
	gpu, err := options.gpu()
	if err != nil {
		return nil, err
	}
	gpu.Setup = append(gpu.Setup, options.Setup...)
	o := options.cluster()
	o.GPU = gpu
	if o.Images, err = options.images(); err != nil {
		return nil, err
	}
	running, err := cluster.Up(ctx, o)
	if err != nil {
		return nil, err
	}
	bed := &Bed{Cluster: running, Client: running.Client(), namespace: metav1.NamespaceDefault, home: Namespace, options: options}
	if err := bed.install(ctx); err != nil {
		return bed, fmt.Errorf("%w\n%s", err, bed.explain(context.WithoutCancel(ctx)))
	}
	return bed, nil
}

// Join adds another node, with its own GPUs, to the cluster of a bed. Join returns the bed of
// the new node.
func Join(ctx context.Context, control *Bed, options Options) (*Bed, error) {
	gpu, err := options.gpu()
	if err != nil {
		return nil, err
	}
	gpu.Setup = append(gpu.Setup, options.Setup...)
	o := options.cluster()
	o.GPU, o.Control = gpu, control.Cluster
	if o.Images, err = options.images(); err != nil {
		return nil, err
	}
	running, err := cluster.Up(ctx, o)
	if err != nil {
		return nil, err
	}
	bed := &Bed{Cluster: running, Client: running.Client(), namespace: metav1.NamespaceDefault, home: Namespace, options: options}
	if err := bed.open(); err != nil {
		return bed, err
	}
	if err := bed.WaitAdvertised(ctx); err != nil {
		return bed, fmt.Errorf("%w\n%s", err, bed.explain(context.WithoutCancel(ctx)))
	}
	return bed, nil
}

// UpNodes makes a cluster of two nodes with these options. The first node has the control plane. If
// UpNodes fails, UpNodes returns the beds of the nodes that the caller must take down.
func UpNodes(ctx context.Context, options Options) ([]*Bed, error) {
	var beds []*Bed
	first, err := Up(ctx, options)
	if first != nil {
		beds = append(beds, first)
	}
	if err != nil {
		return beds, err
	}
	options.Name += "-2"
	second, err := Join(ctx, first, options)
	if second != nil {
		beds = append(beds, second)
	}
	return beds, err
}

// DownNodes takes down a cluster with Bed.Down, the node with the control plane last.
func DownNodes(beds []*Bed, keepLogs bool) error {
	var errs []error
	for _, bed := range slices.Backward(beds) {
		errs = append(errs, bed.Down(keepLogs))
	}
	return errors.Join(errs...)
}

// Remove takes down the cluster of these options, if the cluster exists, and removes every trace of
// the cluster.
func Remove(options Options) error {
	return cluster.Down(options.cluster())
}

// Down takes the cluster down. With keepLogs, the logs stay in the cluster's state directory.
func (b *Bed) Down(keepLogs bool) error {
	if b.physical != nil {
		b.physical.Close()
	}
	options := b.options.cluster()
	options.KeepLogs = keepLogs
	return cluster.Down(options)
}

func (o Options) cluster() cluster.Options {
	return cluster.Options{
		Name: o.Name, Root: o.Source, Downloads: o.Downloads, Containerd: o.Containerd, Kubelet: o.Kubelet, Out: logWriter{o.Log},
		ContainerdLine: o.ContainerdLine, KubeletLine: o.KubeletLine, CRIO: o.CRIO, APIServer: o.APIServer,
	}
}

// Simulated reports whether the GPUs are simulated, because this machine has no GPU.
func (o Options) Simulated() bool {
	_, err := os.Stat("/dev/nvidiactl")
	return err != nil
}

func (o Options) gpu() (*cluster.GPU, error) {
	if o.Simulated() {
		if o.GPUConfig != "" {
			return cluster.ConfiguredGPU(o.build(), o.GPUConfig)
		}
		return cluster.SimulatedGPU(o.build(),
			"--gpus", strconv.Itoa(o.GPUs), "--memory", strconv.FormatUint(o.GPUMemory, 10))
	}
	return cluster.MachineGPU()
}

func (b *Bed) install(ctx context.Context) error {
	if err := b.open(); err != nil {
		return err
	}
	if b.options.Install != nil {
		return b.options.Install(ctx, b)
	}
	b.options.Log("installing nri-vgpu from deploy/nri-vgpu.yaml")
	if err := b.kubectl(ctx, "apply", "-f", filepath.Join(b.options.Source, "deploy", "nri-vgpu.yaml")); err != nil {
		return err
	}
	return b.WaitAdvertised(ctx)
}

// open opens the oracle.
func (b *Bed) open() error {
	var err error
	if b.physical, err = b.openPhysical(); err != nil {
		return err
	}
	b.UUIDs, err = b.physical.UUIDs()
	return err
}

// WaitAdvertised waits until the Node offers its GPUs.
func (b *Bed) WaitAdvertised(ctx context.Context) error {
	if err := b.WaitNode(ctx, installPatience, func(node *corev1.Node) bool {
		quantity := node.Status.Allocatable[Memory]
		return quantity.Value() > 0
	}); err != nil {
		return fmt.Errorf("the node's GPUs were not advertised: %w", err)
	}
	b.options.Log("the node's GPUs are advertised")
	return nil
}

// images builds the images of the workloads and of nri-vgpu. images returns the archives of the
// images.
func (o Options) images() ([]string, error) {
	programs, err := o.workloads()
	if err != nil {
		return nil, err
	}
	files, err := image.Programs(programs)
	if err != nil {
		return nil, err
	}
	host, err := image.HostPrograms(workloadPrograms...)
	if err != nil {
		return nil, err
	}
	archives := []string{o.build("image", "nri-vgpu.tar")}
	files = slices.Concat(image.BaseLayout(), files, host, detours())
	for i, spec := range []image.Spec{
		{Name: Image, Files: files},
		{Name: CUDAImage, Files: files, Env: []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"}},
		{Name: EmptyImage},
	} {
		archive := o.build("image", fmt.Sprintf("%s-workload-%d.tar", o.Name, i))
		spec.Plain = true
		if err := image.Build(archive, spec); err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	return archives, nil
}

// Detours is a directory of the workload images. Links in this directory redirect a mount to
// another place than its path.
const Detours = "/detour/a/b/c/d/e"

func detours() []image.File {
	return []image.File{
		{Path: Detours + "/run", Link: "/run/nri-vgpu"},
		{Path: Detours + "/home", Link: "/usr/local/nri-vgpu"},
		{Path: Detours + "/etc", Link: "/etc"},
		{Path: Detours + "/tmp", Link: "/tmp"},
	}
}

// workloads returns the built programs of test/workload, and the simulator's program that uses a
// GPU without CUDA, by their path in the image.
func (o Options) workloads() (map[string]string, error) {
	dir := o.build("workload")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("the workloads are not built (run make build): %w", err)
	}
	programs := map[string]string{"/usr/bin/gpusim": o.build("gpusim", "gpusim")}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			return nil, err
		}
		if info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			programs["/usr/bin/"+entry.Name()] = filepath.Join(dir, entry.Name())
		}
	}
	return programs, nil
}

// Kubectl returns the path of the cluster's kubectl.
func (b *Bed) Kubectl() string { return b.Cluster.Kubectl() }

// Plugins returns an environment in which kubectl finds the built kubectl-vgpu and this cluster.
func (b *Bed) Plugins() []string {
	path := filepath.Dir(b.Kubectl()) + ":" + b.options.build("bin") + ":" + os.Getenv("PATH")
	return append(os.Environ(), "PATH="+path, "KUBECONFIG="+b.Cluster.Kubeconfig())
}

// KubectlVgpu runs kubectl vgpu. The error contains the command's standard error.
func (b *Bed) KubectlVgpu(ctx context.Context, args ...string) (string, error) {
	return b.kubectlPlugin(ctx, append([]string{"vgpu"}, args...)...)
}

// Complete returns kubectl's completions of a command.
func (b *Bed) Complete(ctx context.Context, args ...string) (string, error) {
	return b.kubectlPlugin(ctx, append([]string{"__complete"}, args...)...)
}

func (b *Bed) kubectlPlugin(ctx context.Context, args ...string) (string, error) {
	command := exec.CommandContext(ctx, b.Kubectl(), args...)
	command.Env = b.Plugins()
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(output), err
}

func (b *Bed) kubectl(ctx context.Context, args ...string) error {
	_, err := b.kubectlOutput(ctx, args...)
	return err
}

func (b *Bed) kubectlOutput(ctx context.Context, args ...string) (string, error) {
	command := exec.CommandContext(ctx, b.Kubectl(), append([]string{"--kubeconfig", b.Cluster.Kubeconfig()}, args...)...)
	output, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(output))
	}
	return string(output), nil
}

// explain returns the state that an engineer would check first if nri-vgpu does not start.
func (b *Bed) explain(ctx context.Context) string {
	var all strings.Builder
	for _, args := range [][]string{
		{"-n", b.home, "get", "pods", "-o", "wide"},
		{"-n", b.home, "get", "events"},
		{"-n", b.home, "logs", "daemonset/nri-vgpu", "--all-containers", "--tail=20"},
		{"-n", b.home, "logs", "daemonset/extended-resource-patcher", "--all-containers", "--tail=20"},
	} {
		output, err := b.kubectlOutput(ctx, args...)
		if err != nil {
			output = err.Error()
		}
		fmt.Fprintf(&all, "--- kubectl %s\n%s\n", strings.Join(args, " "), output)
	}
	return all.String()
}

// WaitNode waits until the condition holds for the Node.
func (b *Bed) WaitNode(ctx context.Context, timeout time.Duration, condition func(*corev1.Node) bool) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		var node *corev1.Node
		// The Node or the API server may be down for a moment.
		node, last = b.Node(ctx)
		return last == nil && condition(node), nil
	})
	if err != nil {
		return fmt.Errorf("node %s is not as awaited after %v: %w", b.Cluster.NodeName, timeout, errorOr(last, err))
	}
	return nil
}

func errorOr(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// WaitNodeReady waits until the Node is Ready.
func (b *Bed) WaitNodeReady(ctx context.Context, timeout time.Duration) error {
	return b.WaitNode(ctx, timeout, func(node *corev1.Node) bool {
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				return condition.Status == corev1.ConditionTrue
			}
		}
		return false
	})
}

// EnsureNamespace makes a namespace if the namespace does not exist.
func (b *Bed) EnsureNamespace(ctx context.Context, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := b.Client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}

// logWriter hands each line to a log function.
type logWriter struct {
	log func(format string, args ...any)
}

var _ io.Writer = logWriter{}

func (w logWriter) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		if line = strings.TrimRight(line, "\n"); line != "" {
			w.log("%s", line)
		}
	}
	return len(p), nil
}
