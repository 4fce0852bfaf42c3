// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	gpus      = 2
	gpuMemory = 16 << 30
	patience  = time.Minute
)

//go:embed pods/*.yaml
var manifests embed.FS

// shown are the pods, with their dialects, in the order of the table.
var shown = []struct{ dialect, file string }{
	{"nri-vgpu", "pods/own.yaml"},
	{"Alnair", "pods/alnair.yaml"},
	{"MetaGPU", "pods/metagpu.yaml"},
}

func demoOptions() (testbed.Options, error) {
	source, err := testbed.SourceRoot()
	if err != nil {
		return testbed.Options{}, err
	}
	downloads, err := downloadsFrom(os.Getenv("DEMO_BINARIES"), os.Getenv("DEMO_BINARIES_URL"))
	if err != nil {
		return testbed.Options{}, err
	}
	start := time.Now()
	return testbed.Options{
		Name:      "demo",
		Downloads: downloads,
		Source:    source,
		GPUs:      gpus,
		GPUMemory: gpuMemory,
		Log: func(format string, args ...any) {
			fmt.Printf("[%4.0fs] %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
		},
	}, nil
}

// downloadsFrom returns the address from which the demo downloads Kubernetes' programs, or "" if the
// demo builds the programs.
func downloadsFrom(binaries, mirror string) (string, error) {
	switch {
	case binaries == "" || binaries == "build":
		return "", nil
	case binaries != "download":
		return "", fmt.Errorf("DEMO_BINARIES is %q; allowed: build, download", binaries)
	case mirror != "":
		return mirror, nil
	default:
		return components.OfficialBinaries, nil
	}
}

func up(ctx context.Context) error {
	options, err := demoOptions()
	if err != nil {
		return err
	}
	helm, err := components.HelmProgram(ctx, options.Source, os.Stdout)
	if err != nil {
		return err
	}
	options.Install = func(ctx context.Context, bed *testbed.Bed) error {
		options.Log("installing nri-vgpu and its web page by deploy/chart")
		return bed.HelmInstall(ctx, helm, "--set", "view.enabled=true")
	}
	bed, err := testbed.Up(ctx, options)
	if err != nil {
		return err
	}
	if err := errors.Join(loadGuard(ctx, bed, options), show(ctx, bed, options, filepath.Dir(helm))); err != nil {
		return fmt.Errorf("%w\nthe cluster stays up for inspection; 'make demo-down' removes the cluster", err)
	}
	return nil
}

// loadGuard restarts the container runtime once, as an administrator does after an installation.
func loadGuard(ctx context.Context, bed *testbed.Bed, options testbed.Options) error {
	options.Log("restarting the container runtime once, which loads the guard")
	if err := bed.Cluster.Restart(ctx, "containerd"); err != nil {
		return err
	}
	var findings string
	err := wait.PollUntilContextTimeout(ctx, time.Second, patience, true, func(ctx context.Context) (bool, error) {
		var err error
		findings, err = bed.KubectlVgpu(ctx, "doctor")
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("kubectl vgpu doctor finds problems:\n%s", findings)
	}
	options.Log("kubectl vgpu doctor finds no problem")
	return nil
}

// A row is the result of one pod.
type row struct {
	dialect, asked string
	pod            *corev1.Pod
	fill           testbed.Fill
	held           map[string]uint64
}

// show runs the pods and prints their parts, and the environment with which to reach the cluster. helm
// is the directory of helm.
func show(ctx context.Context, bed *testbed.Bed, options testbed.Options, helm string) error {
	rows := make([]row, 0, len(shown))
	for _, entry := range shown {
		pod, err := start(ctx, bed, entry.file)
		if err != nil {
			return err
		}
		options.Log("created %s/%s", pod.Namespace, pod.Name)
		rows = append(rows, row{dialect: entry.dialect, asked: asked(pod), pod: pod})
	}
	for i := range rows {
		if err := rows[i].finish(ctx, bed); err != nil {
			return err
		}
	}
	if err := compare(ctx, bed, rows); err != nil {
		return err
	}
	options.Log("kubectl vgpu and the web page show what the simulated GPUs measure")
	node, err := bed.Node(ctx)
	if err != nil {
		return err
	}
	fmt.Println()
	printCapacity(os.Stdout, node)
	fmt.Println()
	printRows(os.Stdout, bed, rows)
	fmt.Printf("\nThe cluster stays up. To reach it:\n\n  export KUBECONFIG=%s\n  export PATH=$PATH:%s:%s:%s\n  kubectl get pods -A\n",
		bed.Cluster.Kubeconfig(), filepath.Dir(bed.Kubectl()), filepath.Join(options.Source, "build", "bin"), helm)
	fmt.Print("  kubectl vgpu top --once\n  kubectl vgpu view\n\nTo remove the cluster: make demo-down\n")
	return nil
}

// start creates the pod of a manifest, and the pod's namespace if missing.
func start(ctx context.Context, bed *testbed.Bed, file string) (*corev1.Pod, error) {
	raw, err := manifests.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict(raw, &pod); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	if err := bed.EnsureNamespace(ctx, pod.Namespace); err != nil {
		return nil, err
	}
	return bed.In(pod.Namespace).Create(ctx, &pod)
}

// finish waits until the pod has filled its share, and queries the oracle.
func (r *row) finish(ctx context.Context, bed *testbed.Bed) error {
	bed = bed.In(r.pod.Namespace)
	pod, err := bed.WaitRunning(ctx, r.pod.Name, patience)
	if err != nil {
		return err
	}
	r.pod = pod
	if err := bed.WaitResult(ctx, pod.Name, pod.Spec.Containers[0].Name, patience, &r.fill); err != nil {
		return err
	}
	r.held, err = bed.Held(pod)
	return err
}

// asked returns the request of the pod's first container, in its own dialect.
func asked(pod *corev1.Pod) string {
	limits := pod.Spec.Containers[0].Resources.Limits
	words := make([]string, 0, len(limits))
	for name, quantity := range limits {
		words = append(words, fmt.Sprintf("%s: %s", name, quantity.String()))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

func printCapacity(out io.Writer, node *corev1.Node) {
	fmt.Fprintf(out, "Capacity of node %s in the API server:\n\n", node.Name)
	names := make([]string, 0, len(node.Status.Capacity))
	for name := range node.Status.Capacity {
		if strings.Contains(string(name), "/") {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, name := range names {
		quantity := node.Status.Capacity[corev1.ResourceName(name)]
		fmt.Fprintf(table, "  %s\t%s\n", name, quantity.String())
	}
	_ = table.Flush()
}

func printRows(out io.Writer, bed *testbed.Bed, rows []row) {
	fmt.Fprintf(out, "Pods that share the %d GPUs of %s; each pod allocates until a refusal:\n\n", len(bed.UUIDs), mib(gpuMemory))
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  POD\tDIALECT\tREQUESTED\tGPU\tPROGRAM SAW\tREFUSED AT\tPHYSICALLY HELD")
	for _, r := range rows {
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.pod.Name, r.dialect, r.asked,
			gpuOf(bed, r.fill.UUID), mib(r.fill.TotalBytes), mib(r.fill.RefusedAtBytes), mib(sum(r.held)))
	}
	_ = table.Flush()
	fmt.Fprintln(out, "\n REFUSED AT is the sum of the program's allocations with the refused allocation;")
	fmt.Fprintln(out, " the CUDA context also counts. PHYSICALLY HELD is the simulated GPU's measurement.")
}

// gpuOf returns the GPU's index and UUID.
func gpuOf(bed *testbed.Bed, uuid string) string {
	return fmt.Sprintf("%d (%s)", slices.Index(bed.UUIDs, uuid), uuid)
}

func sum(held map[string]uint64) uint64 {
	var total uint64
	for _, bytes := range held {
		total += bytes
	}
	return total
}

// mib formats bytes in MiB, exactly.
func mib(bytes uint64) string {
	if rest := bytes % (1 << 20); rest != 0 {
		return fmt.Sprintf("%d MiB + %d B", bytes>>20, rest)
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}
