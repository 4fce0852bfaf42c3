// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/bench/internal/report"
)

// The flood consists of pods with the greatest number of init containers that may request
// a part of a GPU. Quotas count these containers as one. The runtime creates the containers one
// after another.
const (
	// asksMost is the greatest number of requesting containers of a pod.
	asksMost = 64
	// asksTooMany is the number of requesting containers in each of floodRefused pods.
	asksTooMany  = 3000
	floodRefused = 20
	// attempts is the number of attempts after a refusal. The kubelet would wait some seconds
	// before each retry.
	attempts = 5
	// neighbours is the number of normal pods beside the flood. Every second pod has a part of a
	// GPU.
	neighbours = 20
	// neighbourPause is the time for which a neighbour's container runs.
	neighbourPause = 50 * time.Millisecond
	// maxNeighbourMs bounds the 99th percentile of the neighbours' waits.
	maxNeighbourMs = 100
)

// floodPod is a pod of the flood.
type floodPod struct {
	corev1.Pod
	containers int
}

// flooded contains the runtime's waits for containers during the flood.
type flooded struct {
	creations
	Refused int `json:"refused"`
}

// flood measures the waits of the neighbours' containers. Meanwhile, the runtime creates the
// containers of the flood's pods, and the agent refuses some of these containers.
func (n *node) flood(ctx context.Context, lines *report.Lines) ([]verdict, error) {
	pods, err := n.makeFlood(ctx)
	if err != nil {
		return nil, err
	}
	alone, err := n.neighboursDuring(ctx, func(ctx context.Context) error { return pause(ctx, 10*time.Second) })
	if err != nil {
		return nil, err
	}
	tally := &tally{took: map[string][]time.Duration{}, refused: map[string]int{}}
	begin := time.Now()
	beside, err := n.neighboursDuring(ctx, func(ctx context.Context) error { return n.pour(ctx, pods, tally) })
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "%d pods in %v\n", len(pods), time.Since(begin).Round(time.Second))
	all := []flooded{alone.result("neighbours alone"), beside.result("neighbours")}
	for _, which := range []string{"flood", "flood, too many containers"} {
		if len(tally.took[which]) > 0 {
			all = append(all, flooded{newCreations(which, tally.took[which]), tally.refused[which]})
		}
	}
	for _, f := range all {
		if err := lines.Write(f); err != nil {
			return nil, err
		}
	}
	handled, err := handlersOf(ctx, agentAddress, "granted", "withheld", "refused")
	if err != nil {
		return nil, err
	}
	for _, h := range handled {
		if err := lines.Write(h); err != nil {
			return nil, err
		}
	}
	verdicts := judgeFlood(all[1])
	for _, v := range verdicts {
		if err := lines.Write(v); err != nil {
			return nil, err
		}
		fmt.Fprintln(os.Stderr, v)
	}
	return verdicts, nil
}

// makeFlood creates the flood's pods. Some pods fit. Some pods have a last container for which no
// GPU has room. Some pods have more concurrent sidecars than the node has slots. Some pods have
// more requesting containers than allowed.
func (n *node) makeFlood(ctx context.Context) ([]floodPod, error) {
	pods := make([]floodPod, n.options.flood)
	for i := range pods {
		containers, last := asksMost, int64(1)
		var restart *corev1.ContainerRestartPolicy
		switch {
		case i < floodRefused:
			containers = asksTooMany
		case i%4 == 1:
			last = 1 << 20 // MiB
		case i%4 == 3:
			restart = new(corev1.ContainerRestartPolicyAlways)
		}
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("flood-%d", i)},
			Spec:       corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
		}
		for k := range containers {
			mib := int64(1)
			if k == containers-1 {
				mib = last
			}
			limits := corev1.ResourceList{"nri-vgpu.io/vgpu-memory": *resource.NewQuantity(mib, resource.DecimalSI)}
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{
				Name: fmt.Sprintf("init-%d", k), Image: "none", RestartPolicy: restart, Resources: corev1.ResourceRequirements{Limits: limits},
			})
		}
		made, err := n.cluster.Client().CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("create a pod of the flood: %w", err)
		}
		pods[i] = floodPod{*made, containers}
	}
	return pods, nil
}

// neighboursDuring creates the neighbours' containers repeatedly while meanwhile runs.
func (n *node) neighboursDuring(ctx context.Context, meanwhile func(context.Context) error) (*tally, error) {
	tally := &tally{took: map[string][]time.Duration{}, refused: map[string]int{}}
	lasting, over := context.WithCancel(ctx)
	var group sync.WaitGroup
	for i := range n.pods {
		group.Go(func() {
			for pause(lasting, neighbourPause) == nil {
				n.instances[i]++
				begin := time.Now()
				_, adjusted, err := n.create(ctx, &n.pods[i], n.instances[i])
				if given := i < n.asking; err == nil && given != adjusted {
					err = fmt.Errorf("mounts added: %t, want %t", adjusted, given)
				}
				tally.add("", time.Since(begin), err)
			}
		})
	}
	err := meanwhile(ctx)
	over()
	group.Wait()
	return tally, err
}

// pour creates the containers of the flood's pods. pour handles as many pods at a time as
// a kubelet admits.
func (n *node) pour(ctx context.Context, pods []floodPod, tally *tally) error {
	queue := make(chan floodPod, len(pods))
	for _, pod := range pods {
		queue <- pod
	}
	close(queue)
	errs := make(chan error, n.atOnce)
	for range n.atOnce {
		go func() {
			for pod := range queue {
				if err := n.run(ctx, pod, tally); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range n.atOnce {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

// run runs a pod of the flood. run creates init containers one after another while the agent grants
// GPUs, and retries a refused container.
func (n *node) run(ctx context.Context, pod floodPod, tally *tally) error {
	which := "flood"
	if pod.containers == asksTooMany {
		which = "flood, too many containers"
	}
	at, refused := 0, 0
	for at < pod.containers && refused < attempts {
		sandbox, container := containerNamed(&pod.Pod, pod.Spec.InitContainers[at].Name, refused)
		begin := time.Now()
		_, err := n.runtime.CreateContainer(ctx, &api.CreateContainerRequest{Pod: sandbox, Container: container})
		tally.add(which, time.Since(begin), err)
		if err != nil {
			refused++
			continue
		}
		at++
		if _, err := n.runtime.StopContainer(ctx, &api.StopContainerRequest{Pod: sandbox, Container: container}); err != nil {
			return fmt.Errorf("stop a container: %w", err)
		}
	}
	now := int64(0)
	err := n.cluster.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil {
		return fmt.Errorf("delete a pod of the flood: %w", err)
	}
	sandbox, _ := containerNamed(&pod.Pod, "", 0)
	if err := n.runtime.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: sandbox}); err != nil {
		return fmt.Errorf("stop a sandbox: %w", err)
	}
	return nil
}

// tally collects the runtime's waits and the refusals.
type tally struct {
	mu      sync.Mutex
	took    map[string][]time.Duration
	refused map[string]int
	why     []string
}

func (t *tally) add(which string, took time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.took[which] = append(t.took[which], took)
	if err != nil {
		t.refused[which]++
		t.why = append(t.why, err.Error())
	}
}

func (t *tally) result(which string) flooded {
	slices.Sort(t.why)
	for _, why := range slices.Compact(t.why) {
		fmt.Fprintf(os.Stderr, "%s: %.300s\n", which, strings.TrimSpace(why))
	}
	return flooded{newCreations(which, t.took[""]), t.refused[""]}
}

func judgeFlood(beside flooded) []verdict {
	return []verdict{
		{"verdict", "CreateContainer beside the flood, p99 in ms", maxNeighbourMs, beside.P99ms, beside.P99ms <= maxNeighbourMs},
		{"verdict", "CreateContainer beside the flood, refused", 0, float64(beside.Refused), beside.Refused == 0},
	}
}
