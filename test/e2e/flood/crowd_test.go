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
	// asks is how many containers of a pod may ask.
	asks = 64
	// other is a resource that has nothing to do with us.
	other = "example.com/other"
	// crowdLabel marks the crowd's pods. Its value is "fits" or "refused", what the test
	// expects of the pod.
	crowdLabel  = "crowd"
	normalLabel = "normal"
	// fitting is how many pods fit. Each takes a slot, as a normal pod does.
	fitting = 40
	// tooLarge is how many pods have a last container that no GPU has room for: as many
	// as the node has memory for by the scheduler's sum.
	tooLarge = 6
)

// crowdPod is a pod of the crowd. The first ones fit: their containers run one after
// another. A few have a last container that no GPU has room for. All others have more
// containers at a time than the GPUs have slots.
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

// oneByOne is a pod whose containers ask for a MiB one after another, the last for so much.
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

// harmless is the pod without what it asks of us. Its containers ask for as much of another
// resource: for each container that it starts or tries to, kubelet writes down the resources
// of all containers of the node.
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

// refuser is a plugin of NRI that refuses the containers of pods which say that they are
// to be refused. It takes our agent's place where a crowd asks for nothing of ours.
type refuser struct{}

func (refuser) CreateContainer(_ context.Context, pod *api.PodSandbox, _ *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if pod.GetLabels()[crowdLabel] == "refused" {
		return nil, nil, errors.New("refused by the test")
	}
	return nil, nil, nil
}

// refuseMarked has the node refuse what asks for nothing and is to be refused.
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
