// SPDX-License-Identifier: Apache-2.0

package nodegpus

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/choice"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/resize"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// These are the resources that the tests request.
const (
	memory        = "nri-vgpu.io/vgpu-memory"
	volcanoMemory = "volcano.sh/vgpu-memory"
)

// container returns a container with limits such as "nri-vgpu.io/vgpu-memory=1000".
func container(name string, limits ...string) corev1.Container {
	list := corev1.ResourceList{}
	for _, limit := range limits {
		word, units, _ := strings.Cut(limit, "=")
		list[corev1.ResourceName(word)] = resource.MustParse(units)
	}
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: list}}
}

// pod returns a pod of the node "here" that was created at that second.
func pod(uid string, second int64, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: uid, UID: types.UID(uid), CreationTimestamp: metav1.NewTime(time.Unix(second, 0))},
		Spec:       corev1.PodSpec{NodeName: "here", Containers: containers},
	}
}

// asking returns a pod with a container that requests MiB of one GPU.
func asking(uid string, second int64, mib string) *corev1.Pod {
	return pod(uid, second, container("main", memory+"="+mib))
}

func with(p *corev1.Pod, annotations ...string) *corev1.Pod {
	p.Annotations = map[string]string{}
	for _, annotation := range annotations {
		key, value, _ := strings.Cut(annotation, "=")
		p.Annotations[key] = value
	}
	return p
}

// assigned assigns a GPU to the container "main".
func assigned(p *corev1.Pod, uuid string) *corev1.Pod {
	return with(p, assign.Annotation+`={"main":["`+uuid+`"]}`)
}

// byVolcano assigns a GPU in the form of Volcano's scheduler.
func byVolcano(p *corev1.Pod, entry string) *corev1.Pod {
	return with(p, volcano.Node+"=here", volcano.IDs+"="+entry, volcano.BindTime+"=1")
}

// annotated adds an annotation.
func annotated(p *corev1.Pod, annotation string) *corev1.Pod {
	key, value, _ := strings.Cut(annotation, "=")
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[key] = value
	return p
}

// running returns the pod with a container that kubelet has started.
func running(p *corev1.Pod) *corev1.Pod {
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", ContainerID: "containerd://1"}}
	return p
}

// startedIdle returns the pod after kubelet has started only the container "idle".
func startedIdle(p *corev1.Pod) *corev1.Pod {
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "idle", ContainerID: "containerd://1"}, {Name: "main"}}
	return p
}

// node returns a Node that lists its GPUs.
func node(gpus ...gpu.GPU) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", Annotations: map[string]string{assign.GPUsAnnotation: assign.FormatGPUs(gpus)}}}
}

var (
	gpu0 = gpu.GPU{UUID: "GPU-0", Index: 0, Name: "NVIDIA H200", MemoryBytes: 16 * request.GiB, Healthy: true}
	gpu1 = gpu.GPU{UUID: "GPU-1", Index: 1, Name: "NVIDIA H200", MemoryBytes: 16 * request.GiB, Healthy: true}
)

// held returns the GPUs of each pod with allocations.
func held(u Use) map[string][]string {
	all := map[string][]string{}
	for _, a := range u.Ledger.Allocations() {
		for _, d := range a.Devices {
			all[a.PodUID] = append(all[a.PodUID], d.UUID)
		}
	}
	return all
}

func TestWhatPodsHold(t *testing.T) {
	one, two := node(gpu0), node(gpu0, gpu1)
	tests := []struct {
		name string
		node *corev1.Node
		pods []*corev1.Pod
		want map[string][]string
	}{
		{"nothing", two, nil, map[string][]string{}},
		{"a pod that requests nothing, and one that does", one, []*corev1.Pod{pod("a", 1, container("main")), asking("b", 2, "1000")},
			map[string][]string{"b": {"GPU-0"}}},
		{"the second container asks", one, []*corev1.Pod{pod("a", 1, container("idle"), container("main", memory+"=1000"))},
			map[string][]string{"a": {"GPU-0"}}},
		{"two containers", one, []*corev1.Pod{pod("a", 1, container("x", memory+"=1000"), container("y", memory+"=1000"))},
			map[string][]string{"a": {"GPU-0", "GPU-0"}}},
		{"an assigned pod", two, []*corev1.Pod{assigned(asking("a", 1, "1000"), "GPU-1")}, map[string][]string{"a": {"GPU-1"}}},
		{"the oldest comes first", one, []*corev1.Pod{asking("a", 3, "9000"), asking("b", 1, "9000"), asking("c", 2, "9000")},
			map[string][]string{"b": {"GPU-0"}}},
		{"pods of the same age", one, []*corev1.Pod{asking("b", 1, "9000"), asking("a", 1, "9000")}, map[string][]string{"a": {"GPU-0"}}},
		{"an assigned pod comes before older ones", one, []*corev1.Pod{asking("a", 1, "9000"), assigned(asking("b", 2, "9000"), "GPU-0")},
			map[string][]string{"b": {"GPU-0"}}},
		{"a pod without room holds nothing", one, []*corev1.Pod{asking("a", 1, "9000"), asking("b", 2, "9000"), asking("c", 3, "1000")},
			map[string][]string{"a": {"GPU-0"}, "c": {"GPU-0"}}},
		{"an assignment to a GPU of another node", two, []*corev1.Pod{assigned(asking("a", 1, "9000"), "GPU-9"), asking("b", 2, "9000")},
			map[string][]string{"b": {"GPU-0"}}},
		{"an annotation that has become invalid", two, []*corev1.Pod{annotated(assigned(asking("a", 1, "1000"), "GPU-1"), "nri-vgpu.io/compute-policy=x")},
			map[string][]string{"a": {"GPU-1"}}},
		{"a wish that has become invalid", two, []*corev1.Pod{annotated(assigned(pod("a", 1, container("main", volcanoMemory+"=1000")), "GPU-1"), choice.UseUUID+"=GPU-0")},
			map[string][]string{"a": {"GPU-1"}}},
		{"a wish for no GPU of the node, without an assignment", one, []*corev1.Pod{annotated(pod("a", 1, container("main", volcanoMemory+"=1000")), choice.UseUUID+"=GPU-9")},
			map[string][]string{"a": {"GPU-0"}}},
		{"more than a GPU has, all started", one,
			[]*corev1.Pod{running(assigned(asking("a", 1, "9000"), "GPU-0")), running(assigned(asking("b", 2, "9000"), "GPU-0")), asking("c", 3, "1000")},
			map[string][]string{"a": {"GPU-0"}, "b": {"GPU-0"}}},
		{"more than a GPU has, not started", one,
			[]*corev1.Pod{running(assigned(asking("a", 3, "9000"), "GPU-0")), assigned(asking("b", 1, "9000"), "GPU-0"), assigned(asking("c", 2, "1000"), "GPU-0")},
			map[string][]string{"a": {"GPU-0"}, "c": {"GPU-0"}}},
		{"a container that requests nothing has started", one,
			[]*corev1.Pod{
				running(assigned(asking("a", 1, "9000"), "GPU-0")),
				startedIdle(assigned(pod("b", 2, container("idle"), container("main", memory+"=9000")), "GPU-0")), asking("c", 3, "1000"),
			},
			map[string][]string{"a": {"GPU-0"}, "c": {"GPU-0"}}},
		{"a wish for no GPU of the node is no assignment", one,
			[]*corev1.Pod{asking("a", 1, "9000"), annotated(asking("b", 2, "9000"), choice.UseUUID+"=GPU-9")},
			map[string][]string{"a": {"GPU-0"}}},
		{"wishes for a GPU without room", two,
			[]*corev1.Pod{annotated(asking("a", 1, "9000"), choice.UseUUID+"=GPU-0"), annotated(asking("b", 2, "9000"), choice.UseUUID+"=GPU-0")},
			map[string][]string{"a": {"GPU-0"}}},
		{"an assignment by Volcano's scheduler to a started pod of another dialect", one,
			[]*corev1.Pod{running(byVolcano(asking("a", 1, "1000"), "GPU-0,NVIDIA,1000,0:"))}, map[string][]string{"a": {"GPU-0"}}},
		{"a request that is invalid", one, []*corev1.Pod{pod("a", 1, container("main", memory+"=1000", volcanoMemory+"=1000")), asking("b", 2, "1000")},
			map[string][]string{"b": {"GPU-0"}}},
		{"an assignment by Volcano's scheduler", two, []*corev1.Pod{byVolcano(pod("a", 1, container("main", volcanoMemory+"=1000")), "GPU-1,NVIDIA,1000,0:")},
			map[string][]string{"a": {"GPU-1"}}},
		{"an assignment by Volcano's scheduler that is not obeyed", two,
			[]*corev1.Pod{byVolcano(pod("a", 1, container("main", volcanoMemory+"=9000")), "GPU-9,NVIDIA,9000,0:"), asking("b", 2, "9000")},
			map[string][]string{"a": {"GPU-0"}, "b": {"GPU-1"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := slices.Clone(tt.pods)
			use, err := NewReader(config.Default()).Use(tt.node, tt.pods)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, held(use)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if !slices.Equal(before, tt.pods) {
				t.Error("the caller's list of pods has another order")
			}
		})
	}
}

// TestPodsHoldTheSizesInForce checks that pods hold the sizes that the node reports.
func TestPodsHoldTheSizesInForce(t *testing.T) {
	const report = resize.ReportAnnotation + `={"main":{"memory":9000,"cores":40}}`
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want uint64 // MiB
	}{
		"assigned, started":     {annotated(running(assigned(asking("a", 1, "1000"), "GPU-1")), report), 9000},
		"assigned, not started": {annotated(assigned(asking("a", 1, "1000"), "GPU-1"), report), 9000},
		"assigned by Volcano":   {annotated(byVolcano(pod("a", 1, container("main", volcanoMemory+"=1000")), "GPU-1,NVIDIA,1000,0:"), report), 9000},
		"an unreadable report":  {annotated(assigned(asking("a", 1, "1000"), "GPU-1"), resize.ReportAnnotation+"=x"), 1000},
		"without an assignment": {annotated(asking("a", 1, "1000"), report), 9000},
	} {
		use, err := NewReader(config.Default()).Use(node(gpu0, gpu1), []*corev1.Pod{tt.pod})
		if err != nil {
			t.Fatal(err)
		}
		if held := use.Ledger.Pod("a"); len(held) != 1 || held[0].Devices[0].MemoryBytes != tt.want<<20 {
			t.Errorf("%s: holds %+v, want %d MiB", name, held, tt.want)
		}
	}
}

// TestGPUsThatAreGone checks that a pod on a GPU that is gone takes no capacity of other GPUs, as in the
// node's ledger.
func TestGPUsThatAreGone(t *testing.T) {
	both := annotated(running(pod("a", 1, container("main", memory+"=9000", "nri-vgpu.io/vgpu-number=2"))), assign.Annotation+`={"main":["GPU-9","GPU-1"]}`)
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want map[string]uint64 // free MiB
	}{
		"started":               {running(assigned(asking("a", 1, "9000"), "GPU-9")), map[string]uint64{"GPU-0": 16384, "GPU-1": 16384}},
		"not started":           {assigned(asking("a", 1, "9000"), "GPU-9"), map[string]uint64{"GPU-0": 16384, "GPU-1": 16384}},
		"one of two":            {both, map[string]uint64{"GPU-0": 16384, "GPU-1": 16384 - 9000}},
		"without an assignment": {pod("a", 1, container("main", "nri-vgpu.io/vgpu-memory-percentage=50")), map[string]uint64{"GPU-0": 8192, "GPU-1": 16384}},
	} {
		gone := running(assigned(asking("gone", 2, "1000"), "GPU-9"))
		use, err := NewReader(config.Default()).Use(node(gpu0, gpu1), []*corev1.Pod{tt.pod, gone})
		if err != nil {
			t.Fatal(err)
		}
		free := map[string]uint64{}
		for _, room := range use.Ledger.Free() {
			free[room.UUID] = room.FreeMemoryBytes / request.MiB
		}
		if diff := cmp.Diff(tt.want, free); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestUnhealthyGPUsAreHeldAndNotOffered checks that a pod keeps its unhealthy GPU, and that no other
// pod gets the GPU.
func TestUnhealthyGPUsAreHeldAndNotOffered(t *testing.T) {
	sick := gpu0
	sick.Healthy = false
	reader := NewReader(config.Default())
	use, err := reader.Use(node(sick), []*corev1.Pod{asking("a", 1, "1000")})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string][]string{"a": {"GPU-0"}}, held(use)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]gpu.GPU{sick}, use.GPUs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	other, err := reader.Request(asking("b", 2, "1000"))
	if err != nil || use.Ledger.Fits(other) {
		t.Errorf("the next pod gets the unhealthy GPU: %v", err)
	}
}

func TestNodesWithoutAListOfGPUs(t *testing.T) {
	use, err := NewReader(config.Default()).Use(&corev1.Node{}, nil)
	if !errors.Is(err, ErrNotListed) {
		t.Errorf("without an annotation: %+v, %v", use, err)
	}
	broken := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{assign.GPUsAnnotation: "none"}}}
	if use, err := NewReader(config.Default()).Use(broken, nil); err == nil || errors.Is(err, ErrNotListed) {
		t.Errorf("with a damaged annotation: %+v, %v", use, err)
	}
}

// TestRequestsWithAnErrorHoldNothing checks that a pod whose request has an error holds no GPU. A
// scheduler that caches requests may know both a pod's request and the error.
func TestRequestsWithAnErrorHoldNothing(t *testing.T) {
	reader := NewReader(config.Default())
	read := reader.Request
	reader.Request = func(pod *corev1.Pod) (request.Pod, error) {
		asked, err := read(pod)
		return asked, errors.Join(err, errors.New("refused"))
	}
	use, err := reader.Use(node(gpu0), []*corev1.Pod{asking("a", 1, "1000")})
	if err != nil || len(use.Ledger.Holders()) != 0 {
		t.Errorf("pods hold %v: %v", held(use), err)
	}
}
