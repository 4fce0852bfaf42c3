// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	// asks is the highest allowed number of requesting containers of a pod.
	asks = 64
	// other is a resource that nri-vgpu does not know.
	other = "example.com/other"
	// crowdLabel marks the crowd's pods. The label's value, "fits" or "refused", is the expected
	// result of the pod.
	crowdLabel  = "crowd"
	normalLabel = "normal"
	// fitting is the number of pods that fit. Each pod takes a slot, as a normal pod does.
	fitting = 40
	// tooLarge is the number of pods with a last container for which no GPU has room. By the
	// scheduler's sum, this number of pods fits into the node's memory.
	tooLarge = 6
)

// crowdPod returns a pod of the crowd. The first pods fit, because their containers run one after
// another. A few pods have a last container for which no GPU has room. All other pods have more
// concurrent containers than the GPUs have slots.
func crowdPod(i int) *corev1.Pod {
	name := fmt.Sprintf("crowd-%d", i)
	var pod *corev1.Pod
	switch {
	case i < fitting:
		pod = oneByOne(name, 1)
		pod.Labels = map[string]string{crowdLabel: "fits"}
	case i < fitting+tooLarge:
		pod = oneByOne(name, gpuMemory/mib+1)
		pod.Labels = map[string]string{crowdLabel: "refused"}
	default:
		pod = testbed.Pod(name)
		for k := range asks {
			pod.Spec.Containers = append(pod.Spec.Containers, asking(k, 1, "linger"))
		}
		pod.Labels = map[string]string{crowdLabel: "refused"}
	}
	return pod
}

// oneByOne returns a pod whose containers run one after another. The last container requests the
// amount last, and the other containers request 1 MiB each.
func oneByOne(name string, last int64) *corev1.Pod {
	pod := testbed.Pod(name, testbed.Container("main", nil, "linger"))
	for k := range asks {
		memory := int64(1)
		if k == asks-1 {
			memory = last
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, asking(k, memory, "sleep", "0"))
	}
	return pod
}

func asking(k int, memory int64, command ...string) corev1.Container {
	return testbed.Container(fmt.Sprintf("c%d", k), testbed.Limits{testbed.Memory: memory}, command...)
}

// harmless returns the pod without its requests of our resources. The pod's containers request the
// same amount of another resource. For each container that kubelet starts or tries to start,
// kubelet records the resources of all containers of the node.
func harmless(pod *corev1.Pod) *corev1.Pod {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if amount, asks := list[i].Resources.Limits[testbed.Memory]; asks {
				list[i].Resources.Limits = corev1.ResourceList{other: amount}
			}
		}
	}
	return pod
}

// refuser is an NRI plugin that refuses the containers of pods with the label value "refused".
// refuser replaces our agent for a crowd that requests no resources of ours.
type refuser struct{}

func (refuser) CreateContainer(_ context.Context, pod *api.PodSandbox, _ *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if pod.GetLabels()[crowdLabel] == "refused" {
		return nil, nil, errors.New("refused by the test")
	}
	return nil, nil, nil
}

// refuseMarked registers a refuser with the node's container runtime.
func (s *suite) refuseMarked() stub.Stub {
	s.Helper()
	plugin, err := stub.New(refuser{}, stub.WithPluginName("flood"), stub.WithPluginIdx("10"),
		stub.WithSocketPath(filepath.Join(s.bed.Cluster.Root(), "run/nri/nri.sock")))
	if err != nil {
		s.Fatal(err)
	}
	if err := plugin.Start(s.Context()); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(plugin.Stop)
	return plugin
}
