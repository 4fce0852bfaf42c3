// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// plugged returns the output of kubectl vgpu, with exit status 0. On a busy machine an agent may
// not answer in time at first.
func plugged(t *testing.T, args ...string) (output string) {
	t.Helper()
	eventually.Succeeds(t, patience, "kubectl vgpu succeeds", func(context.Context) (err error) {
		output, err = bed.KubectlVgpu(t.Context(), args...)
		return err
	})
	return output
}

func pluggedJSON[T any](t *testing.T, args ...string) T {
	t.Helper()
	var answer T
	output := plugged(t, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(output), &answer); err != nil {
		t.Fatalf("kubectl vgpu %v printed %q: %v", args, output, err)
	}
	return answer
}

// prints waits until kubectl vgpu prints all of these texts.
func prints(t *testing.T, args []string, wants ...string) {
	t.Helper()
	printsWith(t, args, true, wants...)
}

// printsWith waits until kubectl vgpu prints all of these texts, and succeeds or fails.
func printsWith(t *testing.T, args []string, succeeds bool, wants ...string) {
	t.Helper()
	if err := eventually.Check(t.Context(), patience, func() error {
		output, failure := bed.KubectlVgpu(t.Context(), args...)
		printed := fmt.Sprintf("$ kubectl vgpu %s\n%s%v", strings.Join(args, " "), output, failure)
		for _, want := range wants {
			if !strings.Contains(squeezed(output), want) {
				return fmt.Errorf("%q is missing:\n%s", want, printed)
			}
		}
		if (failure == nil) != succeeds {
			return fmt.Errorf("the command succeeds: %t, want %t:\n%s", failure == nil, succeeds, printed)
		}
		t.Log(printed)
		return nil
	}); err != nil {
		t.Errorf("within %v: %v", patience, err)
	}
}

// squeezed returns a text without the padding between the columns of the text's tables.
func squeezed(text string) string { return regexp.MustCompile(" {2,}").ReplaceAllString(text, "  ") }

// crowded makes a node with four pods. One pod has filled its limit, one pod is throttled, one pod
// fits no GPU, and one pod fits no node.
func crowded(t *testing.T) (full, slow *corev1.Pod) {
	t.Helper()
	create(t, testbed.Pod("full", filler("main", testbed.Limits{testbed.Memory: 10240})))
	slowly := testbed.Pod("slow", testbed.Container("main", testbed.Limits{testbed.Memory: 10240, testbed.Cores: 25},
		"spin", "--kernel-us", "2000", "--duration", "3600"))
	slowly.Labels = map[string]string{"app": "slow"}
	create(t, slowly)
	full, slow = running(t, "full"), works(t, "slow")
	filled(t, "full", "main")
	create(t, testbed.Pod("refused", testbed.Container("main", testbed.Limits{testbed.Memory: 8192}, "linger")))
	create(t, testbed.Pod("pending", testbed.Container("main", testbed.Limits{testbed.Memory: 40960}, "linger")))
	return full, slow
}

// TestKubectlVgpu checks that kubectl vgpu, which connects through the API server, reports the
// oracle's measurements. For pods that wait, are refused or are throttled, the plugin explains the
// reason and the fix.
func TestKubectlVgpu(t *testing.T) {
	waitRegistered(t)
	full, slow := crowded(t)
	t.Run("lists", func(t *testing.T) { checkLists(t, full, slow) })
	t.Run("time", func(t *testing.T) { checkTime(t, slow) })
	t.Run("describe", func(t *testing.T) {
		prints(t, []string{"describe", "pod", "pending"}, "the pod requests 40960 of nri-vgpu.io/vgpu-memory, and the largest node has 32768",
			"→ request at most 32768, or add a node with more", "Insufficient nri-vgpu.io/vgpu-memory")
		prints(t, []string{"describe", "pod", "refused"}, "no GPU has room for container", "free now: GPU 0 of "+bed.Cluster.NodeName+": 6144 MiB",
			"default/full (10240 MiB)", "VGPURefused")
		prints(t, []string{"describe", "pod", "slow"}, "is throttled by its limit on GPU time", "request more (nri-vgpu.io/vgpu-cores)")
		prints(t, []string{"describe", "pod", "full"}, "at its limit: it uses 10240 of 10240 MiB", "→ request more memory of the GPU", "VGPUMemoryLimitReached")
		prints(t, []string{"describe", "node", bed.Cluster.NodeName}, "GPUsHealthy", "default  full", "default/refused is bound to this node and has no GPU")
	})
}

func checkLists(t *testing.T, full, slow *corev1.Pod) {
	onGPU := map[string]uint64{}
	for _, pod := range []*corev1.Pod{full, slow} {
		uuid, bytes := onlyGPU(t, held(t, pod))
		onGPU[uuid] += bytes
		eventually.Holds(t, patience, fmt.Sprintf("kubectl vgpu reports that %s holds %d bytes of %s, as the oracle measured", pod.Name, bytes, uuid), func() bool {
			list := pluggedJSON[[]show.PodEntry](t, "get", "pods", pod.Name, "-n", "default")
			if len(list) != 1 || len(list[0].GPUs) != 1 {
				return false
			}
			e, s := list[0], list[0].GPUs[0]
			return e.Status == "Running" && e.Node == bed.Cluster.NodeName && e.Requests[testbed.Memory] == 10240 &&
				s.UUID == uuid && s.MemoryUsedBytes != nil && *s.MemoryUsedBytes == bytes && s.MemoryLimitBytes == 10*gib && s.Processes == 1 &&
				(pod != full || s.Account != nil && s.Account.Refusals > 0 && s.Account.MemoryBytes == 10*gib)
		})
	}
	for name, want := range map[string]string{"pending": "Pending", "refused": "CreateContainerError"} {
		eventually.Holds(t, patience, name+" is listed as "+want, func() bool {
			for _, e := range pluggedJSON[[]show.PodEntry](t, "get", "pods", name, "-n", "default") {
				return e.Status == want && len(e.GPUs) == 0
			}
			return false
		})
	}
	// The capacity of the previous test's pods is free within moments.
	eventually.Holds(t, patience, "GPUs are as the oracle measured, with 6 GiB left of each", func() bool {
		gpus := pluggedJSON[[]agentapi.GPU](t, "get", "gpus")
		same := len(gpus) == 2
		for i, g := range gpus {
			same = same && g.UUID == bed.UUIDs[i] && g.MemoryUsedBytes != nil && *g.MemoryUsedBytes == onGPU[g.UUID] && g.Room != nil && g.Room.FreeMemoryBytes == 6*gib
		}
		return same
	})
	eventually.Holds(t, patience, "kubectl vgpu lists the processes of pods with a label", func() bool {
		list := pluggedJSON[[]agentapi.Process](t, "ps", "-l", "app=slow")
		return len(list) == 1 && list[0].Pod == "slow" && list[0].ComputeLimitPPM == 250_000 && strings.HasPrefix(list[0].Command, "spin ")
	})
	prints(t, []string{"get", "pods", "-A"}, "default  full  main  "+bed.Cluster.NodeName, "10240/10240 MiB")
	prints(t, []string{"get", "gpus", "-o", "wide"}, bed.UUIDs[0], bed.UUIDs[1])
	prints(t, []string{"ps"}, "spin --kernel-us 2000")
	prints(t, []string{"top"}, "default/full/main  10240/10240 MiB", "(all)  10240/16384 MiB")
	if out := plugged(t, "get", "pods", "full", "--no-headers"); strings.Count(out, "\n") != 1 || strings.Contains(out, "NAMESPACE") {
		t.Errorf("without headings kubectl vgpu prints %q", out)
	}
	if out := plugged(t, "get", "gpus", "-o", "yaml"); !strings.Contains(out, "  uuid: "+bed.UUIDs[0]) {
		t.Errorf("as YAML kubectl vgpu prints %q", out)
	}
	for line, want := range map[string]string{"get g": "gpus", "describe pod sl": "slow", "top ": bed.Cluster.NodeName} {
		eventually.Holds(t, patience, fmt.Sprintf("kubectl completes %q by %s", line, want), func() bool {
			out, err := bed.Complete(t.Context(), append([]string{"vgpu"}, strings.Split(line, " ")...)...)
			return err == nil && strings.Contains(out, want)
		})
	}
	if out, err := bed.KubectlVgpu(t.Context(), "ps", "--as", "somebody"); err == nil || !strings.Contains(err.Error(), "you may neither create pods/exec") {
		t.Errorf("an account without rights gets %q, %v", out, err)
	}
	if out, err := bed.KubectlVgpu(t.Context(), "get", "pods", "nonsense"); err == nil || !strings.Contains(err.Error(), "exit status 1: ") {
		t.Errorf("for an unknown pod kubectl vgpu prints %q, %v", out, err)
	}
	// vgpuctl shows all pods on the node, and in a container only the container itself.
	eventually.Holds(t, patience, "on the node vgpuctl lists all pods", func() bool {
		out, err := bed.Vgpuctl(t.Context(), "top")
		return err == nil && strings.Contains(out, "default/slow/main") && strings.Contains(out, "default/full/main")
	})
	eventually.Holds(t, patience, "vgpuctl in a container lists the container", func() bool {
		out, _, err := bed.ExecOutput(t.Context(), "slow", "vgpuctl", "get", "pods")
		if strings.Contains(out, "full") {
			t.Fatalf("vgpuctl in a container lists other containers: %s", out)
		}
		return err == nil && strings.Contains(out, "slow")
	})
}

// checkTime compares the pod's GPU time in kubectl vgpu's report with the oracle's measurement.
func checkTime(t *testing.T, pod *corev1.Pod) {
	var told, low, high float64
	eventually.Holds(t, patience, "the reported time is the oracle's measurement", func() bool {
		_, from, err := bed.GPUTime(pod)
		if err != nil {
			t.Fatal(err)
		}
		recorded := record(t, pod)
		eventually.Holds(t, patience, "enough time has passed", func() bool { _, at, err := bed.GPUTime(pod); return err == nil && at-from > time.Second+answerAge })
		_, asked, err := bed.GPUTime(pod)
		if err != nil {
			t.Fatal(err)
		}
		list := pluggedJSON[[]show.PodEntry](t, "get", "pods", pod.Name)
		low, high = seconds(recorded(), asked-answerAge)
		if len(list) != 1 || len(list[0].GPUs) != 1 || list[0].GPUs[0].Utilisation == nil {
			return false
		}
		told = *list[0].GPUs[0].Utilisation
		return told >= low-promised && told <= high+promised
	})
	t.Logf("the report for the pod is %.1f %%; by the oracle the pod had %.2f to %.2f %%", told, low, high)
}
