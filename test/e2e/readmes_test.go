// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// readmes are the examples in the READMEs of the other systems. testdata/readmes contains the
// examples unchanged, except for image and command.
var readmes = []readme{
	{of: "Alnair, device plugin", file: "alnair-device-plugin.yaml", part: 2 * gib, percent: 50},
	{of: "Alnair, interpose library", file: "alnair-interpose-library.yaml", part: 2 * gib, percent: 50},
	{of: "AWS virtual GPU", file: "aws.yaml", part: gpuMemory / 10, percent: 10, fraction: 0.2},
	{of: "Volcano vGPU", file: "volcano.yaml", part: 3000 * mib, percent: 50},
	{of: "MetaGPU", file: "metagpu.yaml", part: gpuMemory * 30 / 100, percent: 30},
}

// readme is an example, with the expected part of each of its containers' GPUs.
type readme struct {
	of, file string
	part     uint64 // bytes
	percent  float64
	// fraction is the part of the visible memory that the program takes by its own choice. 0 means
	// that the program takes all memory, and is refused more.
	fraction float64
}

// TestReadmes runs the examples one after another. The test records the request, the allocation,
// the visible GPUs and the limits of each example, or compares them with the published table.
func TestReadmes(t *testing.T) {
	var rows []row
	for _, r := range readmes {
		t.Run(strings.TrimSuffix(r.file, ".yaml"), func(t *testing.T) {
			pods := r.start(t)
			seen := make([]row, len(pods))
			results := watch(t, pods)
			for i, pod := range pods {
				seen[i] = r.judge(t, pod, results[i])
				if slices.Compare(seen[i].fixed(), seen[0].fixed()) != 0 {
					t.Errorf("%s is not as its sibling: %q and %q", pod.Name, seen[i].fixed(), seen[0].fixed())
				}
			}
			rows = append(rows, merged(seen))
		})
	}
	if !t.Failed() {
		checkTable(t, rows)
	}
}

// start creates the example and waits until its pods run.
func (r readme) start(t *testing.T) []*corev1.Pod {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "readmes", r.file))
	if err != nil {
		t.Fatal(err)
	}
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(raw, &kind); err != nil {
		t.Fatal(err)
	}
	if kind.Kind == "Deployment" {
		return deploy(t, raw)
	}
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict(raw, &pod); err != nil {
		t.Fatal(err)
	}
	home := bed.In(metav1.NamespaceDefault)
	if pod.Namespace != "" {
		home = bed.In(pod.Namespace)
		if err := home.EnsureNamespace(t.Context(), pod.Namespace); err != nil {
			t.Fatal(err)
		}
	}
	created, err := home.Create(t.Context(), &pod)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, created) })
	if created.Spec.SchedulerName != corev1.DefaultSchedulerName {
		bind(t, created)
	}
	made, err := home.WaitRunning(t.Context(), pod.Name, patience)
	if err != nil {
		t.Fatal(err)
	}
	return []*corev1.Pod{made}
}

// bind replaces a scheduler that this cluster lacks, and does the simplest part of Volcano's
// scheduling.
func bind(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	err := bed.Client.CoreV1().Pods(pod.Namespace).Bind(t.Context(), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
		Target:     corev1.ObjectReference{Kind: "Node", Name: bed.Cluster.NodeName},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func end(t *testing.T, pod *corev1.Pod) {
	ctx := context.Background()
	if t.Failed() {
		explain(ctx, t, bed.In(pod.Namespace), pod.Name)
	}
	if err := bed.In(pod.Namespace).Delete(ctx, pod.Name); err != nil {
		t.Errorf("clean up: %v", err)
	}
}

func deploy(t *testing.T, raw []byte) []*corev1.Pod {
	t.Helper()
	var deployment appsv1.Deployment
	if err := yaml.UnmarshalStrict(raw, &deployment); err != nil {
		t.Fatal(err)
	}
	deployments := bed.Client.AppsV1().Deployments(metav1.NamespaceDefault)
	if _, err := deployments.Create(t.Context(), &deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var pods []*corev1.Pod
	t.Cleanup(func() {
		background := metav1.DeletePropagationBackground
		err := deployments.Delete(context.Background(), deployment.Name, metav1.DeleteOptions{PropagationPolicy: &background})
		if err != nil {
			t.Error(err)
		}
		for _, pod := range pods {
			end(t, pod)
		}
	})
	selector := metav1.FormatLabelSelector(deployment.Spec.Selector)
	eventually.Holds(t, patience, "the deployment has all its pods", func() bool {
		list, err := bed.Client.CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return false
		}
		pods = nil
		for i := range list.Items {
			pods = append(pods, &list.Items[i])
		}
		return len(pods) == int(*deployment.Spec.Replicas)
	})
	for i, pod := range pods {
		pods[i] = running(t, pod.Name)
	}
	return pods
}

// result contains the measurements of a pod that has done its work.
type result struct {
	info  testbed.Info
	fills map[string]testbed.Fill // by GPU
	// shares are the percentages of each GPU's time that the pod had while the pod kept the GPU
	// busy, according to the oracle.
	shares map[string]float64
}

// watch waits until the pods have done their work, and measures the pods' GPU time meanwhile.
func watch(t *testing.T, pods []*corev1.Pod) []result {
	t.Helper()
	results := make([]result, len(pods))
	meters := make([]meter, len(pods))
	eventually.Holds(t, patience, "the pods have done their work", func() bool {
		ready := true
		for i, pod := range pods {
			busy, err := bed.Busy(pod)
			if err != nil {
				t.Fatal(err)
			}
			meters[i].note(busy, time.Now())
			results[i] = read(t, pod)
			ready = ready && results[i].info.NVML.Count > 0 && len(results[i].fills) == results[i].info.NVML.Count
		}
		return ready
	})
	for i := range results {
		results[i].shares = meters[i].shares()
	}
	return results
}

// read reads the output of the pod's programs so far.
func read(t *testing.T, pod *corev1.Pod) result {
	t.Helper()
	got := result{fills: map[string]testbed.Fill{}}
	log, err := bed.In(pod.Namespace).Log(t.Context(), pod.Name, pod.Spec.Containers[0].Name)
	if err != nil {
		return got // the container may not have started
	}
	for line := range strings.Lines(log) {
		var fill testbed.Fill
		switch {
		case !strings.HasPrefix(line, "{") || !strings.HasSuffix(line, "\n"):
		case strings.Contains(line, `"nvml"`):
			err = json.Unmarshal([]byte(line), &got.info)
		case strings.Contains(line, `"refused_at_bytes"`):
			err = json.Unmarshal([]byte(line), &fill)
			got.fills[fill.UUID] = fill
		}
		if err != nil {
			t.Fatalf("%s printed %q: %v", pod.Name, line, err)
		}
	}
	return got
}

// meter measures the GPU time of processes. The measurement of a process starts the time settled
// after the process's first GPU time.
type meter map[testbed.Spender]*span

type span struct {
	began, from, to time.Time
	atFrom, atTo    time.Duration
}

const settled = 700 * time.Millisecond

func (m *meter) note(busy map[testbed.Spender]time.Duration, now time.Time) {
	if *m == nil {
		*m = meter{}
	}
	for who, spent := range busy {
		s, known := (*m)[who]
		switch {
		case spent == 0:
		case !known:
			(*m)[who] = &span{began: now}
		case s.from.IsZero():
			if now.Sub(s.began) > settled {
				s.from, s.atFrom, s.to, s.atTo = now, spent, now, spent
			}
		case spent > s.atTo:
			s.to, s.atTo = now, spent
		}
	}
}

// shares returns the shares of the process that was busy for longest on each GPU.
func (m *meter) shares() map[string]float64 {
	shares, longest := map[string]float64{}, map[string]time.Duration{}
	for who, s := range *m {
		if d := s.to.Sub(s.from); d > time.Second && d > longest[who.UUID] {
			longest[who.UUID] = d
			shares[who.UUID] = 100 * float64(s.atTo-s.atFrom) / float64(d)
		}
	}
	return shares
}

// These constants bound the deviation of a share, in points. A busy machine can keep a program from
// using its share, but never increases the share.
const (
	over  = 4
	under = 12
)

// judge compares the resources that a pod saw, took and had with its request.
func (r readme) judge(t *testing.T, pod *corev1.Pod, got result) row {
	t.Helper()
	devices := given(t, pod)
	holds := held(t, pod)
	out := row{of: r.of, asked: asked(pod), got: describeGiven(devices), refused: r.fraction == 0}
	for _, d := range devices {
		if d.MemoryBytes != r.part || float64(d.ComputePPM) != r.percent*10_000 {
			t.Errorf("%s was given %d bytes and %d ppm of %s, want %d and %.0f %%", pod.Name, d.MemoryBytes, d.ComputePPM, d.UUID, r.part, r.percent)
		}
		fill, share := got.fills[d.UUID], got.shares[d.UUID]
		most, refusal := r.takes()
		if fill.Error != refusal || fill.TotalBytes != r.part {
			t.Errorf("%s: on %s the program saw %d bytes and was refused with %q, want %q", pod.Name, d.UUID, fill.TotalBytes, fill.Error, refusal)
		}
		// The driver allocates memory in pieces of 2 MiB.
		if holds[d.UUID] > min(most+2*mib, r.part) || holds[d.UUID] < most-2*mib {
			t.Errorf("%s: by the oracle the pod holds %d bytes of %s, want %d within 2 MiB", pod.Name, holds[d.UUID], d.UUID, most)
		}
		if r.percent == 0 { // no limit on time
			continue
		}
		if share > r.percent+over || share < r.percent-under || share == 0 {
			t.Errorf("%s: by the oracle the pod had %.1f %% of the time of %s, want %.0f", pod.Name, share, d.UUID, r.percent)
		}
		out.held = append(out.held, holds[d.UUID])
		out.had = append(out.had, share)
	}
	out.seen = r.seen(t, pod, got.info, len(devices))
	return out
}

// takes returns the memory that a container takes of each GPU, and the error of the last allocation.
func (r readme) takes() (most uint64, refusal string) {
	if r.fraction == 0 {
		return r.part, "CUDA_ERROR_OUT_OF_MEMORY"
	}
	return uint64(r.fraction*float64(r.part)) + contextBytes, "CUDA_SUCCESS"
}

// seen returns the GPUs that CUDA and NVML showed in the container, which must agree.
func (r readme) seen(t *testing.T, pod *corev1.Pod, info testbed.Info, gpus int) string {
	t.Helper()
	if len(info.CUDA.Devices) != gpus || len(info.NVML.Devices) != gpus {
		t.Fatalf("%s sees %d GPUs by CUDA and %d by NVML, want %d", pod.Name, len(info.CUDA.Devices), len(info.NVML.Devices), gpus)
	}
	for i, d := range info.CUDA.Devices {
		if n := info.NVML.Devices[i]; n.UUID != d.UUID || d.TotalBytes != r.part || n.Memory.TotalBytes != r.part {
			t.Errorf("%s sees %+v by CUDA and %+v by NVML, want GPUs of %d bytes", pod.Name, d, n, r.part)
		}
	}
	return fmt.Sprintf("%d × %s", gpus, mebibytes(r.part))
}
