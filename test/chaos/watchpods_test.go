// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// podWatch watches the pods in the API server.
type podWatch struct {
	*world
	// waits contains the latest reasons for which containers do not start.
	waits map[string]string
	ends  map[string]bool // of containers
}

func (w *world) watchPods(ctx context.Context) {
	p := &podWatch{world: w, waits: map[string]string{}, ends: map[string]bool{}}
	factory := informers.NewSharedInformerFactoryWithOptions(w.Client, 0, informers.WithNamespace(metav1.NamespaceDefault))
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { p.see(obj) },
		UpdateFunc: func(_, obj any) { p.see(obj) },
		DeleteFunc: func(obj any) { p.see(obj) },
	})
	if err != nil {
		w.Error(err)
		return
	}
	informer.RunWithContext(ctx)
}

func (p *podWatch) see(obj any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	one := p.subjects.get(pod.Labels[subjectLabel])
	if one == nil {
		return
	}
	if pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "" && p.waits[string(pod.UID)] == "" {
		p.waits[string(pod.UID)] = pod.Status.Reason
		p.count.add("pods rejected by kubelet", pod.Status.Reason)
		if one.steady {
			p.broken("disturbed", "steady pod %s has failed: %s: %s", pod.Name, pod.Status.Reason, pod.Status.Message)
		}
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			p.seeContainer(pod, one, &list[i])
		}
	}
}

func (p *podWatch) seeContainer(pod *corev1.Pod, one *subject, status *corev1.ContainerStatus) {
	ids := []string{status.ContainerID}
	for _, end := range []*corev1.ContainerStateTerminated{status.State.Terminated, status.LastTerminationState.Terminated} {
		if end != nil {
			ids = append(ids, end.ContainerID)
			p.seeEnd(one, status.Name, end)
		}
	}
	for _, id := range ids {
		if _, bare, ok := strings.Cut(id, "://"); ok {
			p.count.container(bare, "the API server")
			if status.State.Running != nil && id == status.ContainerID {
				p.scanner.runs(bare)
			}
		}
	}
	if one.steady && status.RestartCount > 0 {
		p.broken("disturbed", "container %s of the steady pod %s was restarted %d times", status.Name, pod.Name, status.RestartCount)
	}
	p.seeWaiting(string(pod.UID)+"/"+status.Name, status.State.Waiting)
}

// seeEnd counts the ways in which containers ended, each container once. Kubelet may kill a
// tenant's program when the pod is deleted, but the program must never crash because of nri-vgpu.
func (p *podWatch) seeEnd(one *subject, name string, end *corev1.ContainerStateTerminated) {
	if p.ends[end.ContainerID] {
		return
	}
	p.ends[end.ContainerID] = true
	if end.Reason == "StartError" {
		p.count.add("refusals", kindOf(end.Message))
		return
	}
	p.count.add("containers' ends", fmt.Sprintf("exit code %d", end.ExitCode))
	switch signal := syscall.Signal(end.ExitCode - 128); signal {
	case syscall.SIGBUS, syscall.SIGSEGV, syscall.SIGABRT, syscall.SIGILL, syscall.SIGFPE:
		p.broken("failed", "%s/%s crashed: %v", one.key, name, signal)
	default: // the container received a signal to end, or ended by itself
	}
}

// seeWaiting counts the reasons for which containers were refused, each new text once.
func (p *podWatch) seeWaiting(key string, waiting *corev1.ContainerStateWaiting) {
	if waiting == nil || !strings.HasSuffix(waiting.Reason, "Error") || p.waits[key] == waiting.Message {
		return
	}
	p.waits[key] = waiting.Message
	p.count.add("refusals", kindOf(waiting.Message))
}

// refusals are the texts of failed creations or starts of containers.
var refusals = []struct{ text, kind string }{
	{"created without its limits", "created unadjusted, not started"},
	{"was created with NVIDIA_VISIBLE_DEVICES", "created unadjusted, not started"},
	{"required plugin", "the plugin is away"},
	{"request is unknown", "pod unknown"},
	{"no such pod", "pod gone"},
	{"failed to write its limits", "state directory"},
	{"no space left", "state directory"},
	{"fits", "no GPU fits"},
	{"free", "no GPU fits"},
	{"has released its part", "released meanwhile"},
	{"context deadline exceeded", "time-out"},
	{"containerd.sock", "containerd is away"},
	{"name", "the name is in use"},
}

func kindOf(message string) string {
	for _, r := range refusals {
		if strings.Contains(message, r.text) {
			return r.kind
		}
	}
	return "other: " + strings.TrimSpace(message[:min(len(message), 100)])
}

func reason(err error) string {
	switch {
	case strings.Contains(err.Error(), "already exists"):
		return "the name is in use"
	case strings.Contains(err.Error(), "deadline"), strings.Contains(err.Error(), "refused"), strings.Contains(err.Error(), "EOF"), strings.Contains(err.Error(), "reset"):
		return "the API server is away"
	default:
		return err.Error()
	}
}
