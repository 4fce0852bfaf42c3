// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// ownMemory is the native resource that counts MiB of one GPU.
const ownMemory = ownPrefix + "vgpu-memory"

const mib = 1 << 20

func some[T any](v T) *T { return &v }

func amounts(list map[string]int64) corev1.ResourceList {
	all := corev1.ResourceList{}
	for name, n := range list {
		all[corev1.ResourceName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return all
}

// node returns a sound node with this much memory.
func node(name string, memory int64) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{advertised: ownMemory + ",example.com/share"}},
		Status: corev1.NodeStatus{
			Allocatable: amounts(map[string]int64{ownMemory: memory, "example.com/share": 10}),
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
				{Type: ready, Status: corev1.ConditionTrue, Reason: "GPUsHealthy", Message: "GPUs that accept containers: 2"},
			},
		},
	}
}

// about returns a pod on a node with one GPU of 16000 MiB. Another pod holds half of the GPU.
func about(asks map[string]int64, change func(*Pod)) Pod {
	p := Pod{
		Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
			Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Limits: amounts(asks)}}}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning},
		},
		Nodes: []corev1.Node{node("n1", 16000), node("n2", 8000)},
		After: []agentapi.Overview{{
			Node: "n1",
			GPUs: []agentapi.GPU{{Node: "n1", Device: agentapi.Device{UUID: "a"}, Room: &agentapi.Room{MemoryBytes: 16000 * mib, FreeMemoryBytes: 8000 * mib, FreeComputePPM: 500_000}}},
			Containers: []agentapi.Container{{
				Namespace: "ns", Pod: "other", Container: "main", GPUs: []agentapi.Share{{UUID: "a", MemoryLimitBytes: 8000 * mib}},
			}},
		}},
		Now: time.Now(),
	}
	p.Asked, p.Invalid = request.FromPod(p.Pod, config.Default().Dialects)
	change(&p)
	return p
}

// uses sets two observations, a second apart, in which the pod uses its GPU.
func uses(before, after agentapi.Share) func(*Pod) {
	return func(p *Pod) {
		at := time.Now()
		for i, s := range []agentapi.Share{before, after} {
			o := agentapi.Overview{Node: "n1", At: at.Add(time.Duration(i) * time.Second), Containers: []agentapi.Container{
				{Namespace: "ns", Pod: "p", PodUID: "u", Container: "main", GPUs: []agentapi.Share{s}},
			}}
			if i == 0 {
				p.Before = []agentapi.Overview{o}
			} else {
				p.After = []agentapi.Overview{o}
			}
		}
	}
}

func account(throttled float64, refusals uint64) *agentapi.Account {
	return &agentapi.Account{ThrottledSeconds: throttled, Refusals: refusals, MemoryBytes: 900 * mib, RefusedBytes: 200 * mib, RefusedWay: "alloc"}
}

func pending(message string) func(*Pod) {
	return func(p *Pod) {
		p.Pod.Spec.NodeName, p.Pod.Status.Phase = "", corev1.PodPending
		p.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: message}}
	}
}

func waits(reason, message string) func(*Pod) {
	return func(p *Pod) {
		p.Pod.Status.Phase = corev1.PodPending
		p.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
	}
}

func event(reason, message string) corev1.Event {
	return corev1.Event{Reason: reason, Message: message, Type: "Warning", LastTimestamp: metav1.NewTime(time.Now().Add(-90 * time.Second))}
}

func TestPod(t *testing.T) {
	limited := agentapi.Share{UUID: "a", MemoryLimitBytes: 1000 * mib, ComputeLimitPPM: 250_000, Utilisation: some(24.9), Account: account(10, 0)}
	slower := limited
	slower.Account = account(10.7, 0)
	refused := limited
	refused.Utilisation, refused.Account = some(1.0), account(10, 4)
	waiting, rests := slower, limited
	waiting.Utilisation, rests.Utilisation = some(5.0), some(5.0)
	open, agrees := rests, rests
	open.Meter = &agentapi.Meter{Seconds: 600, Samples: 3600, Observed: 0.701, Metered: 0.298, Ratio: 2.352, Low: 2.27, High: 2.43, Disagreement: 0.379, Disagrees: true}
	agrees.Meter = &agentapi.Meter{Seconds: 600, Samples: 3600, Observed: 0.3, Metered: 0.298, Ratio: 1.007, Low: 0.93, High: 1.085}
	memory := map[string]int64{ownMemory: 4000}
	for name, c := range map[string]struct {
		pod    Pod
		level  finding.Level
		phrase string // in the message
		advice string
	}{
		"requests nothing":  {about(nil, func(*Pod) {}), finding.OK, "requests no part of a GPU", ""},
		"is well":           {about(memory, uses(limited, agentapi.Share{UUID: "a", Account: account(10, 0)})), finding.OK, "the pod has what it requests", ""},
		"more than a node":  {about(map[string]int64{ownMemory: 20000}, pending("Insufficient")), finding.Problem, "the largest node has 16000 (n1)", "request at most 16000"},
		"of no node":        {about(map[string]int64{ownPrefix + "typo": 1}, pending("Insufficient")), finding.Problem, "no node has any nri-vgpu.io/typo", "check the resource's name"},
		"others have it":    {about(memory, pending("0/2 nodes are available")), finding.Problem, "0/2 nodes are available", "GPU 0 of n1: 8000 MiB, 50 % of the time; wait, request less, or delete one of ns/other (8000 MiB)"},
		"another dialect":   {about(map[string]int64{"example.com/share": 11}, pending("x")), finding.Problem, "the pod requests 11 of example.com/share", "at most 10"},
		"more than one GPU": {about(map[string]int64{ownMemory: 30000}, func(p *Pod) { pending("x")(p); p.Nodes[0] = node("n1", 32000) }), finding.Problem, "no node can ever start the pod: container main requests 30000 MiB of one GPU, and no GPU is that large: the largest has 16000 MiB", "Neither waiting nor deleting other pods helps"},
		"refused, and larger than any GPU": {about(map[string]int64{ownMemory: 20000}, waits("CreateContainerError", `nri-vgpu refuses container "main": no GPU has room for it`)),
			finding.Problem, "container main is refused: no GPU has room", "no GPU is that large: the largest has 16000 MiB to allocate. Neither waiting"},
		"refused, and larger than the node's GPUs": {about(map[string]int64{ownMemory: 20000}, func(p *Pod) {
			waits("CreateContainerError", `nri-vgpu refuses container "main": no GPU has room for it`)(p)
			p.After = append(p.After, agentapi.Overview{Node: "n2", GPUs: []agentapi.GPU{{Node: "n2", Room: &agentapi.Room{MemoryBytes: 32000 * mib}}}})
		}), finding.Problem, "container main is refused", "Another node has such a GPU: delete the pod"},
		"refused, and not all is known": {about(map[string]int64{ownMemory: 20000}, func(p *Pod) {
			waits("CreateContainerError", `nri-vgpu refuses container "main": no GPU has room for it`)(p)
			p.Unknown = errors.New("n2 is away")
		}), finding.Problem, "container main is refused", "on node n1"},
		"two dialects": {about(map[string]int64{ownMemory: 1, "alnair/vgpu-memory": 1}, func(p *Pod) { p.SpecInvalid = true }),
			finding.Problem, "no node starts the pod: pod ns/p: container \"main\": requests GPUs in two dialects", "recreate the pod"},
		"an annotation": {about(map[string]int64{ownMemory: 1}, func(p *Pod) { p.Invalid = errors.New("gpu-mem-limit") }), finding.Problem, "no node starts the pod: gpu-mem-limit", "annotation"},
		"kubelet's error": {about(memory, waits("CreateContainerError", "no command\nspecified")), finding.Problem,
			"kubelet reports of container main: CreateContainerError: no command specified", "kubectl describe pod -n ns p"},
		"being made": {about(memory, waits("ContainerCreating", "")), finding.OK, "the runtime creates its containers", ""},
		"ends again and again": {about(memory, func(p *Pod) {
			waits("CrashLoopBackOff", "back-off 10s")(p)
			p.Pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"}
		}), finding.Problem, "the container's last exit status is 3 (Error)", "-c main --previous"},

		"refused": {about(memory, waits("CreateContainerError", `rpc error: nri-vgpu refuses container "main": no GPU has room for it`)),
			finding.Problem, "container main is refused: no GPU has room", "free now: GPU 0 of n1: 8000 MiB"},
		"refused by the guard": {about(memory, waits("CreateContainerError", "nri-vgpu's guard refuses container")), finding.Problem, "guard refuses", "the node's agent does not answer"},
		"refused, by its Event": {about(memory, func(p *Pod) {
			waits("CreateContainerError", "cut off")(p)
			p.Events = []corev1.Event{event("VGPURefused", "its own mounts hide ours")}
		}), finding.Problem, "refused 1 times, last 1m ago: its own mounts hide ours", "follow the message"},
		"was refused":   {about(memory, func(p *Pod) { p.Events = []corev1.Event{event("VGPURefused", "x")} }), finding.OK, "the pod has what it requests", ""},
		"slow":          {about(memory, uses(limited, slower)), finding.Warning, "it uses 24.9/25 % of GPU 0, and its threads waited 0.70 s", "the limit works as configured"},
		"slow by turns": {about(memory, uses(limited, waiting)), finding.Warning, "it uses 5.0/25 % of GPU 0, and its threads waited 0.70 s", ""},
		"was slow":      {about(memory, uses(limited, rests)), finding.OK, "the pod has what it requests", ""},
		"limit is open": {about(memory, uses(open, open)), finding.Warning, "container main was charged 29.8 % of the time of GPU 0, and used 70.1 % in 10m0s by the driver's samples: 37.9 points beyond the error of 3600 samples", "#vgpumeterdisagrees"},
		"limit holds":   {about(memory, uses(agrees, agrees)), finding.OK, "the pod has what it requests", ""},
		"full":          {about(memory, uses(limited, refused)), finding.Warning, "was refused 4 allocations at its limit: it uses 900 of 1000 MiB of GPU 0, and the last refused allocation requested 200 MiB (alloc)", "request more memory"},
		"full, by both": {about(memory, func(p *Pod) {
			uses(limited, refused)(p)
			p.Events = []corev1.Event{event("VGPUMemoryLimitReached", "reached its memory limit")}
		}), finding.Warning, "was refused 4 allocations", "request more memory"},
		"was full":        {about(memory, func(p *Pod) { p.Events = []corev1.Event{event("VGPUMemoryLimitReached", "reached its memory limit")} }), finding.Warning, "VGPUMemoryLimitReached, 1m ago", "request more memory"},
		"unhealthy":       {about(memory, uses(limited, agentapi.Share{UUID: "a", Unhealthy: "XID 79"})), finding.Problem, "which is unhealthy: XID 79", "recreate the pod"},
		"evicted":         {about(memory, func(p *Pod) { p.Events = []corev1.Event{event("VGPUEvicted", "it fits no GPU")} }), finding.Warning, "VGPUEvicted, 1m ago: it fits no GPU", "controller creates another pod"},
		"agents are away": {about(memory, func(p *Pod) { p.Unknown = errors.New("n1 is away") }), finding.Warning, "some agents did not answer: n1 is away", "kubectl vgpu doctor"},
		"node is not well": {about(memory, func(p *Pod) {
			p.Nodes[0].Status.Conditions[1] = corev1.NodeCondition{Type: ready, Status: corev1.ConditionFalse, Message: "the agent does not report"}
		}), finding.Warning, "its node n1: the agent does not report", "kubectl vgpu doctor n1"},
	} {
		findings := c.pod.Findings()
		first := findings[0]
		if first.Level != c.level || !strings.Contains(first.Message, c.phrase) || !strings.Contains(first.Fix, c.advice) {
			t.Errorf("%s: found %+v, want %s, %q, %q", name, findings, c.level, c.phrase, c.advice)
		}
		var b strings.Builder
		if err := c.pod.Write(&b); err != nil || !strings.Contains(b.String(), c.phrase) {
			t.Errorf("%s: written was %q, %v", name, b.String(), err)
		}
	}
}

// TestALentLimit checks that no change of policy is suggested if a lent limit equals the guarantee.
func TestALentLimit(t *testing.T) {
	s := agentapi.Share{UUID: "a", ComputeLimitPPM: 250_000, ComputeMaximumPPM: 1_000_000, Utilisation: some(25.0), Account: account(1, 0)}
	findings := about(map[string]int64{ownMemory: 1}, uses(s, s)).Findings()
	if len(findings) != 1 || strings.Contains(findings[0].Fix, "compute-policy") {
		t.Errorf("found %+v", findings)
	}
	s.ComputeMaximumPPM, s.Utilisation = 500_000, some(49.9)
	findings = about(map[string]int64{ownMemory: 1}, uses(s, s)).Findings()
	if len(findings) != 1 || !strings.Contains(findings[0].Message, "it uses 49.9/25-50 % of GPU 0") ||
		findings[0].Fix != "the maximum works as configured; for more time, raise the maximum (gpu-compute-limit.<resource>)" {
		t.Errorf("at its maximum: found %+v", findings)
	}
}

func TestNode(t *testing.T) {
	well := node("n1", 16000)
	chosen := node("n1", 16000)
	chosen.Labels = map[string]string{"feature.node.kubernetes.io/pci-0302_10de.present": "true"}
	agent := &fleet.Agent{Node: "n1", Pod: "nri-vgpu-x"}
	bad := node("n1", 16000)
	bad.Status.Conditions[1] = corev1.NodeCondition{Type: ready, Status: corev1.ConditionFalse, Reason: "GPUUnhealthy", Message: "1 of 2"}
	empty := node("n1", 16000)
	empty.Status.Conditions[1] = corev1.NodeCondition{Type: ready, Status: corev1.ConditionFalse, Reason: "NoGPU", Message: "nothing of GPU 0 (a) is offered"}
	claimed := &agentapi.Overview{OfferedTwice: []string{"a"}, GPUs: []agentapi.GPU{{Device: agentapi.Device{UUID: "a", Unhealthy: "another device plugin offers it"}}}}
	bare := node("n1", 1)
	bare.Annotations, bare.Status.Conditions = nil, bare.Status.Conditions[:1]
	for name, c := range map[string]struct {
		node   Node
		phrase string // "" if nothing is wrong
	}{
		"well":            {Node{Node: &well, Agent: agent, Overview: &agentapi.Overview{Node: "n1"}}, ""},
		"no agent":        {Node{Node: &chosen}, "describe daemonset; a node selector or a taint may exclude the node"},
		"not selected":    {Node{Node: &well}, "kubectl label node n1 nri-vgpu.io/gpu=true"},
		"agent is down":   {Node{Node: &well, Agent: &fleet.Agent{Pod: "x", Down: "its pod x does not run", State: "container agent: CrashLoopBackOff"}}, "CrashLoopBackOff"},
		"does not report": {Node{Node: &well, Agent: agent, Unknown: errors.New("it hangs")}, "it hangs"},
		"not ready":       {Node{Node: &bad, Agent: agent}, "GPUUnhealthy: 1 of 2"},
		"never ready":     {Node{Node: &bare, Agent: agent}, "has no condition VGPUReady"},
		"a lost GPU": {Node{Node: &well, Agent: agent, Overview: &agentapi.Overview{GPUs: []agentapi.GPU{{Device: agentapi.Device{UUID: "a", Unhealthy: "XID 79"}}}}},
			"GPU 0 (a) is unhealthy and gets no new containers: XID 79"},
		"a GPU of another plugin": {Node{Node: &well, Agent: agent, Overview: claimed}, `set node.gpus.exclude = ["a"] in config.toml`},
		"unhealthy or claimed":    {Node{Node: &bad, Agent: agent}, "if the message names another device plugin: docs/how-to/coexist.md; else"},
		"undivided":               {Node{Node: &empty, Agent: agent}, "if the message names a GPU in MIG mode: docs/how-to/mig.md; else"},
		"no driver":               {Node{Node: &well, Agent: agent, Overview: &agentapi.Overview{Driver: "the driver does not answer"}}, "the driver does not answer"},
	} {
		findings := c.node.Findings()
		if finding.Sound(findings) != (c.phrase == "") {
			t.Errorf("%s: found %+v", name, findings)
		}
		var b strings.Builder
		if err := c.node.Write(&b); err != nil || !strings.Contains(b.String(), c.phrase) {
			t.Errorf("%s: written was %q, %v", name, b.String(), err)
		}
		if c.node.Overview == claimed && strings.Contains(b.String(), "xid") {
			t.Errorf("%s: the fix concerns broken hardware: %q", name, b.String())
		}
		for _, f := range findings {
			if f.Level == finding.Problem && f.Fix == "" {
				t.Errorf("%s: there is no fix for %+v", name, f)
			}
		}
	}
}

// TestLabelsAreTheCharts checks that the doctor looks for the labels that the chart's values list.
func TestLabelsAreTheCharts(t *testing.T) {
	content, err := os.ReadFile("../../../deploy/chart/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct{ GPUNodeLabels []string }
	if err := yaml.Unmarshal(content, &values); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(values.GPUNodeLabels, gpuNodeLabels); diff != "" {
		t.Errorf("labels (-chart +doctor):\n%s", diff)
	}
}

// TestARefusalIsListedOnce checks that kubelet's repetition of a refusal is not listed.
func TestARefusalIsListedOnce(t *testing.T) {
	p := about(map[string]int64{ownMemory: 4000}, func(p *Pod) {
		p.Events = []corev1.Event{
			event("VGPURefused", "container \"main\": no GPU has room"),
			event("Failed", "Error: nri-vgpu refuses container \"main\": no GPU has room"),
			event("Failed", "Error: no command specified"),
		}
	})
	var b strings.Builder
	if err := p.Write(&b); err != nil || strings.Count(b.String(), "no GPU has room") != 1 || !strings.Contains(b.String(), "no command specified") {
		t.Errorf("written was %q, %v", b.String(), err)
	}
	p.Events = p.Events[1:]
	if list := p.ownEvents(); len(list) != 2 {
		t.Errorf("without the agent's Event: %+v", list)
	}
}

// TestAdvice checks that advice covers every Event reason.
func TestAdvice(t *testing.T) {
	source, err := os.ReadFile("../../kube/events/reasons.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`Reason\{"(\w+)"`).FindAllStringSubmatch(string(source), -1)
	for _, d := range declared {
		if _, ok := advice[d[1]]; !ok {
			t.Errorf("there is no advice for %s", d[1])
		}
	}
	if len(declared) != len(advice) {
		t.Errorf("there are %d reasons, and advice for %d", len(declared), len(advice))
	}
}

// TestReports checks that reports contain the data of the texts, and empty lists instead of null.
func TestReports(t *testing.T) {
	share := agentapi.Share{UUID: "a", MemoryLimitBytes: mib}
	p := about(map[string]int64{ownMemory: 4000}, func(p *Pod) {
		uses(share, share)(p)
		p.Events = []corev1.Event{event("VGPUMemoryLimitReached", "reached its memory limit")}
	}).Report()
	if p.Name != "p" || p.Node != "n1" || p.Requests["main"][ownMemory] != 4000 || len(p.Containers) != 1 || len(p.Findings) != 1 || p.Events[0].Times != 1 {
		t.Errorf("got %+v", p)
	}
	well := node("n1", 16000)
	overview := &agentapi.Overview{Version: "1", GPUs: []agentapi.GPU{{Node: "n1"}}}
	n := Node{Node: &well, Agent: &fleet.Agent{Pod: "x"}, Overview: overview, Events: []corev1.Event{event("Other", ""), event("GPUUnhealthy", "lost")}}.Report()
	if n.Name != "n1" || n.Agent != "1" || n.Offers[ownMemory] != 16000 || len(n.GPUs) != 1 || len(n.Events) != 1 {
		t.Errorf("got %+v", n)
	}
	for _, value := range []any{about(nil, func(p *Pod) { p.Events = nil }).Report(), Node{Node: &well}.Report()} {
		raw, err := json.Marshal(value)
		if err != nil || strings.Contains(string(raw), "null") {
			t.Errorf("got %s, %v", raw, err)
		}
	}
}

func TestPodShowsWhatIsObserved(t *testing.T) {
	share := agentapi.Share{UUID: "a", Meter: &agentapi.Meter{Ratio: 1.007, Low: 0.93, High: 1.085}}
	var b strings.Builder
	if err := about(map[string]int64{ownMemory: 4000}, uses(share, share)).Write(&b); err != nil || !strings.Contains(b.String(), "1.01 (0.93 to 1.08)") {
		t.Errorf("written was %q, %v", b.String(), err)
	}
}
