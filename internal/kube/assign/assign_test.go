// SPDX-License-Identifier: Apache-2.0

package assign

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

const gib = request.GiB

// These are the resources that the tests request.
const (
	number  = "nri-vgpu.io/vgpu-number"
	memory  = "nri-vgpu.io/vgpu-memory"
	cores   = "nri-vgpu.io/vgpu-cores"
	metagpu = "cnvrg.io/metagpu"
)

// container returns a container with limits such as "cnvrg.io/metagpu=30".
func container(name string, limits ...string) corev1.Container {
	list := corev1.ResourceList{}
	for _, limit := range limits {
		word, units, _ := strings.Cut(limit, "=")
		list[corev1.ResourceName(word)] = resource.MustParse(units)
	}
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: list}}
}

func sidecar(name string, limits ...string) corev1.Container {
	c, always := container(name, limits...), corev1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
	return c
}

func pod(containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "uid"},
		Spec:       corev1.PodSpec{Containers: containers},
	}
}

func withInit(p *corev1.Pod, containers ...corev1.Container) *corev1.Pod {
	p.Spec.InitContainers = containers
	return p
}

func annotated(p *corev1.Pod, key, value string) *corev1.Pod {
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[key] = value
	return p
}

// spreading enables all dialects and every annotation, and allows the division of MetaGPU's shares.
func spreading() config.Config {
	cfg := config.Default()
	cfg.Dialects.MetaGPU.AllowSpread = true
	cfg.Dialects.MetaGPU.DeviceSharing = append(cfg.Dialects.MetaGPU.DeviceSharing,
		config.DeviceSharing{ResourceName: "cnvrg.io/second", SharesPerGPU: 10, UUIDs: []string{"GPU-1"}},
		config.DeviceSharing{ResourceName: "cnvrg.io/sixth", SharesPerGPU: 6, UUIDs: []string{config.AllGPUs}})
	cfg.Compute.PodsMayChoose, cfg.Memory.OvercommitPercent = true, 100
	return cfg
}

// gpus returns GPUs "GPU-0", "GPU-1", … of 16 GiB.
func gpus(n int) []gpu.GPU {
	all := make([]gpu.GPU, n)
	for i := range all {
		all[i] = gpu.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, Name: "NVIDIA H200", MemoryBytes: 16 * gib, Healthy: true}
	}
	return all
}

func read(t testing.TB, p *corev1.Pod) request.Pod {
	t.Helper()
	asked, err := request.Read(p, spreading())
	if err != nil {
		t.Fatal(err)
	}
	return asked
}

// ledger returns a ledger in which other pods hold percents of each GPU, such as "50 80".
func ledger(t *testing.T, gpus []gpu.GPU, taken string) *placement.Ledger {
	t.Helper()
	l := placement.New(gpus, spreading())
	for i, field := range strings.Fields(taken) {
		percent, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		if percent == 0 {
			continue
		}
		ppm := uint32(percent) * 10_000
		other := request.Pod{UID: fmt.Sprint("other-", i), Containers: []request.Container{{Name: "c", Kind: request.App, Shares: []request.Share{
			{Memory: request.Memory{PPM: ppm}, ComputePPM: ppm, GPUs: []string{gpus[i].UUID}},
		}}}}
		if _, err := l.Place(other, "c"); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// place places all containers of a pod, and returns their allocations.
func place(t *testing.T, l *placement.Ledger, asked request.Pod) []placement.Allocation {
	t.Helper()
	for _, c := range asked.Containers {
		if _, err := l.Place(asked, c.Name); err != nil {
			t.Fatal(err)
		}
	}
	return l.Pod(asked.UID)
}

// TestTheNodeMakesThePlanOfTheScheduler checks that a node that obeys an assignment makes the
// allocations from which the scheduler formatted the assignment.
func TestTheNodeMakesThePlanOfTheScheduler(t *testing.T) {
	tests := []struct {
		name  string
		taken string // percent of each GPU that other pods hold
		pod   *corev1.Pod
		want  string
	}{
		{"native memory", "0 50", pod(container("a", memory+"=4096")), `{"a":["GPU-1"]}`},
		{"native cores, and as much memory", "50 80", pod(container("a", cores+"=30")), `{"a":["GPU-0"]}`},
		{"a whole GPU", "10 0", pod(container("a", number+"=1")), `{"a":["GPU-1"]}`},
		{"two GPUs", "90 0 0", pod(container("a", number+"=2", memory+"=9000")), `{"a":["GPU-1","GPU-2"]}`},
		{"Alnair's memory and time", "0 10", pod(container("a", "alnair/vgpu-memory=3", "alnair/vgpu-compute=20")), `{"a":["GPU-1"]}`},
		{"Alnair's time, with memory in common", "10 0", pod(container("a", "alnair/vgpu-compute=20")), `{"a":["GPU-1"]}`},
		{"AWS slots", "80 0", pod(container("a", "k8s.amazonaws.com/vgpu=3")), `{"a":["GPU-1"]}`},
		{"more AWS slots than a GPU has", "10 0", pod(container("a", "k8s.amazonaws.com/vgpu=13")), `{"a":["GPU-1","GPU-0"]}`},
		{"Volcano's memory", "0 20", pod(container("a", "volcano.sh/vgpu-memory=1000")), `{"a":["GPU-1"]}`},
		{"Volcano's percent of two GPUs", "80 0 0",
			pod(container("a", "volcano.sh/vgpu-number=2", "volcano.sh/vgpu-memory-percentage=33", "volcano.sh/vgpu-cores=20")), `{"a":["GPU-1","GPU-2"]}`},
		{"MetaGPU's shares", "80 0", pod(container("a", metagpu+"=30")), `{"a":["GPU-1"]}`},
		{"more of MetaGPU's shares than a GPU has", "10 0", pod(container("a", metagpu+"=130")), `{"a":["GPU-1","GPU-0"]}`},
		{"a divided share", "50 60", pod(container("a", metagpu+"=80")), `{"a":["GPU-1:400000","GPU-0:400000"]}`},
		{"a share in three pieces", "50 60 95", pod(container("a", metagpu+"=92")), `{"a":["GPU-2:50000","GPU-1:400000","GPU-0:470000"]}`},
		{"pieces that are rounded down", "50 50", pod(container("a", "cnvrg.io/sixth=5")), `{"a":["GPU-0:499998","GPU-1:333332"]}`},
		{"a whole GPU and a divided share", "50 60 0", pod(container("a", metagpu+"=180")), `{"a":["GPU-2","GPU-1:400000","GPU-0:400000"]}`},
		{"pieces with a maximum and more memory", "50 60",
			annotated(annotated(pod(container("a", metagpu+"=80")), request.PolicyAnnotation, config.ComputeShare), request.LimitAnnotation+metagpu, "90"),
			`{"a":["GPU-1:400000","GPU-0:400000"]}`},
		{"a name's own GPU", "50 0", pod(container("a", "cnvrg.io/second=3")), `{"a":["GPU-1"]}`},
		{"several containers, one without GPUs", "50 0",
			pod(container("a", memory+"=6000"), container("idle"), container("b", memory+"=6000"), container("c", memory+"=4000")),
			`{"a":["GPU-1"],"b":["GPU-1"],"c":["GPU-1"]}`},
		{"containers on different GPUs", "50 0",
			pod(container("a", memory+"=16384"), container("b", memory+"=8192")), `{"a":["GPU-1"],"b":["GPU-0"]}`},
		{"an init container and one that reuses its GPU", "50 0",
			withInit(pod(container("a", memory+"=8000")), container("first", memory+"=16384")), `{"a":["GPU-1"],"first":["GPU-1"]}`},
		{"a sidecar", "50 0",
			withInit(pod(container("a", memory+"=8192")), sidecar("side", memory+"=16384"), container("first", memory+"=8000")),
			`{"a":["GPU-0"],"first":["GPU-0"],"side":["GPU-1"]}`},
		{"containers of different dialects", "0 0",
			pod(container("a", "alnair/vgpu-memory=3"), container("b", metagpu+"=30"), container("c", "k8s.amazonaws.com/vgpu=1")),
			`{"a":["GPU-0"],"b":["GPU-0"],"c":["GPU-0"]}`},
		{"a container with two names", "0 0", pod(container("a", metagpu+"=30", "cnvrg.io/second=3")), `{"a":["GPU-0","GPU-1"]}`},
		{"none asks", "0", pod(container("idle")), `{}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			node := gpus(len(strings.Fields(tt.taken)))
			asked := read(t, tt.pod)
			planned, _, err := ledger(t, node, tt.taken).Plan(asked)
			if err != nil {
				t.Fatal(err)
			}
			text, err := Format(asked, planned)
			if err != nil {
				t.Fatal(err)
			}
			if text != tt.want {
				t.Errorf("the assignment is %s, want %s", text, tt.want)
			}
			bound, err := Bind(asked, text, node)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(read(t, tt.pod), asked); diff != "" {
				t.Errorf("Bind changed its argument (-before +after):\n%s", diff)
			}
			checkBound(t, asked, bound, node)
			if diff := cmp.Diff(planned, place(t, ledger(t, node, tt.taken), bound)); diff != "" {
				t.Errorf("allocations (-planned +made):\n%s", diff)
			}
		})
	}
}

// TestAnAssignmentIsObeyedInsteadOfThePolicy checks that the node obeys an assignment to GPUs that
// no planner of this release would choose.
func TestAnAssignmentIsObeyedInsteadOfThePolicy(t *testing.T) {
	tests := []struct {
		name string
		pod  *corev1.Pod
		text string
		want map[string][]string // GPUs and bytes of each container
	}{
		{"another GPU", pod(container("a", memory+"=1024")), `{"a":["GPU-2"]}`, map[string][]string{"a": {"GPU-2 1024"}}},
		{"in another order", pod(container("a", number+"=2", memory+"=1024")), `{"a":["GPU-2","GPU-0"]}`,
			map[string][]string{"a": {"GPU-2 1024", "GPU-0 1024"}}},
		{"divided without need", pod(container("a", metagpu+"=50")), `{"a":["GPU-2:100000","GPU-0:400000"]}`,
			map[string][]string{"a": {"GPU-2 1638", "GPU-0 6553"}}},
		{"a last piece with the rest", pod(container("a", "cnvrg.io/sixth=5")), `{"a":["GPU-0:499998","GPU-1:333335"]}`,
			map[string][]string{"a": {"GPU-0 8191", "GPU-1 5461"}}},
		{"a piece that is all", pod(container("a", metagpu+"=50")), `{"a":["GPU-2:500000"]}`, map[string][]string{"a": {"GPU-2 8192"}}},
		{"the last of two lists", pod(container("a", memory+"=1024")), `{"a":["GPU-1"],"a":["GPU-2"]}`, map[string][]string{"a": {"GPU-2 1024"}}},
		{"no container asks", pod(container("idle")), `null`, map[string][]string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			node := gpus(3)
			asked := read(t, tt.pod)
			bound, err := Bind(asked, tt.text, node)
			if err != nil {
				t.Fatal(err)
			}
			checkBound(t, asked, bound, node)
			got := map[string][]string{}
			for _, a := range place(t, ledger(t, node, "0 0 0"), bound) {
				for _, d := range a.Devices {
					got[a.Container] = append(got[a.Container], fmt.Sprint(d.UUID, " ", d.MemoryBytes/request.MiB))
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("GPUs and MiB (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBindRefuses(t *testing.T) {
	one, two := container("a", memory+"=1000"), container("a", number+"=2", memory+"=1000")
	tests := []struct {
		name string
		pod  *corev1.Pod
		text string
		want string
	}{
		{"no JSON", pod(one), `GPU-0`, "the annotation is not a list of GPUs for each container: invalid character"},
		{"nothing", pod(one), ``, "the annotation is not a list of GPUs for each container"},
		{"a list", pod(one), `["GPU-0"]`, "the annotation is not a list of GPUs for each container: json: cannot unmarshal array"},
		{"numbers", pod(one), `{"a":[0]}`, "the annotation is not a list of GPUs for each container: json: cannot unmarshal number"},
		{"null", pod(one), `null`, `container "a" is in the annotation: false; the container requests GPUs: true`},
		{"a container is missing", pod(one, container("b", memory+"=1")), `{"a":["GPU-0"]}`, `container "b" is in the annotation: false; the container requests GPUs: true`},
		{"a container that requests nothing", pod(one, container("b")), `{"a":["GPU-0"],"b":["GPU-0"]}`,
			`container "b" is in the annotation: true; the container requests GPUs: false`},
		{"a container that does not exist", pod(one), `{"a":["GPU-0"],"z":["GPU-0"]}`, `the pod has no container "z"`},
		{"a GPU of another node", pod(one), `{"a":["GPU-9"]}`, `container "a": GPU "GPU-9" is not in this node`},
		{"a GPU without a name", pod(one), `{"a":[""]}`, `GPU "" is not in this node`},
		{"lines of a log", pod(one), `{"a":["\nlevel=INFO"]}`, `GPU "\nlevel=INFO" is not in this node`},
		{"no GPU", pod(one), `{"a":[]}`, "the annotation has 0 GPUs, fewer than the container requests"},
		{"no list", pod(one), `{"a":null}`, "the annotation has 0 GPUs, fewer than the container requests"},
		{"a GPU too few", pod(two), `{"a":["GPU-0"]}`, "the annotation has 1 GPUs, fewer than the container requests"},
		{"a GPU too many", pod(one), `{"a":["GPU-0","GPU-1"]}`, "the annotation has 2 GPUs, and the container requests 1"},
		{"a GPU twice", pod(two), `{"a":["GPU-0","GPU-0"]}`, "GPU GPU-0 is in the annotation twice"},
		{"a GPU that the name excludes", pod(container("a", "cnvrg.io/second=3")), `{"a":["GPU-0"]}`, "the pod's request does not allow GPU GPU-0; allowed: GPU-1"},

		{"pieces of bytes", pod(one), `{"a":["GPU-0:500000","GPU-1:500000"]}`, `"GPU-0:500000" is a piece of a share that nri-vgpu may not divide`},
		{"pieces of GiB", pod(container("a", "alnair/vgpu-memory=3")), `{"a":["GPU-0:1"]}`, "may not divide"},
		{"pieces of memory in common", pod(container("a", "alnair/vgpu-compute=3")), `{"a":["GPU-0:0"]}`, "may not divide"},
		{"pieces of a whole GPU", pod(container("a", metagpu+"=100")), `{"a":["GPU-0:500000","GPU-1:500000"]}`, "may not divide"},
		{"a colon alone", pod(one), `{"a":["GPU-0:"]}`, `"GPU-0:" is a piece of a share that nri-vgpu may not divide`},
		{"a piece of nothing", pod(container("a", metagpu+"=50")), `{"a":["GPU-0:0","GPU-1:500000"]}`, `"GPU-0:0" is not a piece of a share`},
		{"a piece without a number", pod(container("a", metagpu+"=50")), `{"a":["GPU-0:"]}`, `"GPU-0:" is not a piece of a share`},
		{"a negative piece", pod(container("a", metagpu+"=50")), `{"a":["GPU-0:-1"]}`, `"GPU-0:-1" is not a piece of a share`},
		{"two numbers", pod(container("a", metagpu+"=50")), `{"a":["GPU-0:1:2"]}`, `"GPU-0:1:2" is not a piece of a share`},
		{"more than the share", pod(container("a", metagpu+"=50")), `{"a":["GPU-0:510000"]}`,
			`"GPU-0:510000" is not a piece of a share; allowed: the UUID, a colon, and 500000 or a smaller multiple of 10000 parts per million`},
		{"more than is left of the share", pod(container("a", metagpu+"=50")), `{"a":["GPU-0:400000","GPU-1:110000"]}`, "and 100000 or a smaller multiple of 10000"},
		{"a number of 33 bits", pod(container("a", metagpu+"=50")), `{"a":["GPU-0:4295467296"]}`, `"GPU-0:4295467296" is not a piece of a share`},
		{"a number of 65 bits", pod(container("a", metagpu+"=50")), `{"a":["GPU-0:18446744073710051616"]}`, "is not a piece of a share"},
		{"a piece smaller than a unit", pod(container("a", metagpu+"=50")), `{"a":["GPU-0:1","GPU-1:499999"]}`, `"GPU-0:1" is not a piece of a share`},
		{"a piece that is missing", pod(container("a", metagpu+"=50")), `{"a":["GPU-0:400000"]}`, "the annotation has 1 GPUs, fewer than the container requests"},
		{"a last piece without a number", pod(container("a", metagpu+"=50")), `{"a":["GPU-0:400000","GPU-1"]}`, `"GPU-1" is not a piece of a share`},
		{"two pieces on a GPU", pod(container("a", metagpu+"=50")), `{"a":["GPU-0:400000","GPU-0:100000"]}`, "GPU GPU-0 is in the annotation twice"},
		{"a piece beside the whole GPU", pod(container("a", metagpu+"=150")), `{"a":["GPU-0","GPU-0:500000"]}`, "GPU GPU-0 is in the annotation twice"},
		{"a piece too many", pod(container("a", metagpu+"=50")), `{"a":["GPU-0:400000","GPU-1:100000","GPU-2:10000"]}`, "the annotation has 3 GPUs, and the container requests 2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bound, err := Bind(read(t, tt.pod), tt.text, gpus(3))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %+v, %v; want an error with %q", bound, err, tt.want)
			}
		})
	}
}

func TestFormatRefuses(t *testing.T) {
	asked := read(t, pod(container("a", number+"=1", memory+"=1000")))
	on := func(container string, uuids ...string) []placement.Allocation {
		a := placement.Allocation{Container: container}
		for _, uuid := range uuids {
			a.Devices = append(a.Devices, placement.Device{UUID: uuid})
		}
		return []placement.Allocation{a}
	}
	for want, allocations := range map[string][]placement.Allocation{
		`container "z" has an allocation, but is not in the pod`: on("z", "GPU-0"),
		`container "a" has fewer GPUs than it requests`:          on("a"),
		`container "a" has more GPUs than it requests`:           on("a", "GPU-0", "GPU-1"),
	} {
		if text, err := Format(asked, allocations); err == nil || err.Error() != want {
			t.Errorf("got %s, %v; want the error %q", text, err, want)
		}
	}
}

func TestObey(t *testing.T) {
	plain := pod(container("a", memory+"=1000"))
	asked := read(t, plain)
	got, err := Obey(asked, plain, gpus(2))
	if diff := cmp.Diff(asked, got); err != nil || diff != "" {
		t.Errorf("a pod without an assignment: %v (-want +got):\n%s", err, diff)
	}
	got, err = Obey(asked, annotated(plain, Annotation, `{"a":["GPU-1"]}`), gpus(2))
	if err != nil || !slices.Equal(got.Containers[0].Shares[0].GPUs, []string{"GPU-1"}) {
		t.Errorf("got %+v, %v; want GPU-1", got, err)
	}
	const want = `pod ns/pod: the agent cannot apply the assignment in annotation nri-vgpu.io/assigned: container "a": GPU "GPU-2" is not in this node`
	if got, err = Obey(asked, annotated(plain, Annotation, `{"a":["GPU-2"]}`), gpus(2)); err == nil || err.Error() != want {
		t.Errorf("got %+v, %v; want the error %q", got, err, want)
	}
	if _, err := Obey(asked, annotated(plain, Annotation, ""), gpus(2)); err == nil {
		t.Error("an empty assignment was obeyed")
	}
}

// sums are the amounts that a container requests on all GPUs together.
type sums struct {
	bytes, ppm, gib, limit, compute uint64
	common, slots, exclusive        int
}

func sumsOf(shares []request.Share) sums {
	var all sums
	for _, s := range shares {
		all.bytes += s.Memory.Bytes
		all.ppm += uint64(s.Memory.PPM)
		all.gib += uint64(s.Memory.GiB)
		all.limit += s.Limit.Bytes + uint64(s.Limit.PPM) + uint64(s.Limit.GiB)
		all.compute += uint64(s.ComputePPM)
		all.slots += s.Slots
		if s.Memory.Common {
			all.common++
		}
		if s.Exclusive {
			all.exclusive++
		}
	}
	return all
}

// checkBound checks that a bound pod requests the original amounts, on one GPU for each share. The pieces
// of a divided share may lack what rounding has dropped.
func checkBound(t *testing.T, asked, bound request.Pod, node []gpu.GPU) {
	t.Helper()
	if len(bound.Containers) != len(asked.Containers) {
		t.Fatalf("%d containers became %d", len(asked.Containers), len(bound.Containers))
	}
	for i, c := range bound.Containers {
		before := asked.Containers[i]
		if c.Name != before.Name || c.Kind != before.Kind || c.Dialect != before.Dialect {
			t.Errorf("container %+v became %+v", before, c)
		}
		want, got := sumsOf(before.Shares), sumsOf(c.Shares)
		if got.limit > want.limit {
			t.Errorf("%s may use %d and requested %d", c.Name, got.limit, want.limit)
		}
		want.limit, got.limit = 0, 0 // the limits of pieces are rounded down
		for _, s := range before.Shares {
			if lost := uint64(s.Memory.PPM % max(s.SplitPPM, 1)); got.ppm < want.ppm {
				got.ppm, got.compute = got.ppm+lost, got.compute+lost
			}
		}
		if got != want {
			t.Errorf("%s is bound to %+v, and requested %+v", c.Name, got, want)
		}
		var used []string
		for _, s := range c.Shares {
			if len(s.GPUs) != 1 || slices.Contains(used, s.GPUs[0]) || !slices.ContainsFunc(node, func(g gpu.GPU) bool { return g.UUID == s.GPUs[0] }) {
				t.Errorf("%s has shares on %v and on %v", c.Name, used, s.GPUs)
			}
			if s.SplitPPM != 0 || s.MaximumPPM != 0 && (s.MaximumPPM <= s.ComputePPM || s.MaximumPPM > request.Whole) {
				t.Errorf("%s has the share %+v", c.Name, s)
			}
			used = append(used, s.GPUs...)
		}
	}
}

// FuzzBind checks that no text makes Bind panic, and that a bound pod requests the original
// amounts.
func FuzzBind(f *testing.F) {
	pods := []*corev1.Pod{
		pod(container("a", memory+"=1000")),
		pod(container("a", number+"=2", memory+"=1000", cores+"=20"), container("b"), container("c", number+"=1")),
		withInit(pod(container("a", metagpu+"=80")), sidecar("b", metagpu+"=130"), container("c", "cnvrg.io/second=3")),
		annotated(annotated(pod(container("a", metagpu+"=80", "cnvrg.io/second=13"), container("b", metagpu+"=60")),
			request.PolicyAnnotation, config.ComputeShare), request.LimitAnnotation+metagpu, "90"),
		pod(container("a", "alnair/vgpu-compute=20"), container("b", "alnair/vgpu-memory=2"), container("c", "k8s.amazonaws.com/vgpu=13")),
		pod(container("a", "volcano.sh/vgpu-number=3", "volcano.sh/vgpu-memory-percentage=33")),
	}
	for _, text := range []string{
		`{"a":["GPU-1"]}`, `{"a":["GPU-0","GPU-1"],"c":["GPU-2"]}`, `{"a":["GPU-2:400000","GPU-0:400000"],"b":["GPU-1","GPU-0:300000"],"c":["GPU-1"]}`,
		`{"a":["GPU-0:500000","GPU-2:300000","GPU-1","GPU-3"],"b":["GPU-0:10000","GPU-1:60000"]}`, `{"a":["GPU-0"],"b":["GPU-1"],"c":["GPU-2","GPU-0"]}`,
		`{"a":["GPU-0","GPU-1","GPU-2"]}`, `null`, `{"a":["GPU-0:4294967297",""],"":null}`,
	} {
		for i := range pods {
			f.Add(text, i)
		}
	}
	node := gpus(4)
	f.Fuzz(func(t *testing.T, text string, i int) {
		asked := read(t, pods[uint(i)%uint(len(pods))])
		bound, err := Bind(asked, text, node)
		if err == nil {
			checkBound(t, asked, bound, node)
		}
	})
}
