// SPDX-License-Identifier: Apache-2.0

// Package resize requests a size for a container's parts of GPUs, and waits for the answer of the
// pod's node.
package resize

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/resize"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// API reads and annotates pods.
type API interface {
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// Annotate sets an annotation of a pod, or removes it if the value is "". A pod that has changed
	// since it was read is a conflict.
	Annotate(ctx context.Context, pod *corev1.Pod, key, value string) error
}

// Options are the flags of the command.
type Options struct {
	Namespace, Pod string
	// Container is the container's name; "" selects the only container that requests extended
	// resources.
	Container string
	// Memory is the memory of each GPU, as MiB or as a quantity such as 8Gi. Cores is the part of
	// each GPU's time in percent. Values that are "" and 0 keep the requested size.
	Memory string
	Cores  uint32
	// Reset requests the size of the pod's spec.
	Reset bool
	// Wait bounds the wait for the node's answer; 0 does not wait.
	Wait time.Duration
}

const (
	// conflicts bounds the attempts to write the annotation while others change the pod.
	conflicts = 5
	// interval is the time between looks at the pod.
	interval = 100 * time.Millisecond
)

// Errors of Run, beside the errors of the API server.
var (
	// ErrInfeasible reports that the container can never have the size.
	ErrInfeasible = errors.New("infeasible")
	// ErrPending reports that the container does not have the size yet.
	ErrPending = errors.New("pending")
)

// Run requests a size, waits until the node has answered, and writes the container's size.
func Run(ctx context.Context, api API, o Options, out io.Writer) error {
	change, err := o.change()
	if err != nil {
		return err
	}
	pod, container, wanted, err := write(ctx, api, o, change)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("container %s of pod %s/%s", container, o.Namespace, o.Pod)
	if o.Wait == 0 {
		_, err := fmt.Fprintf(out, "requested a size for %s; kubectl get pod -n %s %s -o jsonpath='{.metadata.annotations.nri-vgpu\\.io/resized}' shows the result\n",
			name, o.Namespace, o.Pod)
		return err
	}
	report, err := await(ctx, api, o, pod, container, wanted)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	_, err = fmt.Fprintf(out, "%s now has %s\n", name, describe(report.Size))
	return err
}

// change returns a function that changes the requested size of a container.
func (o Options) change() (func(resize.Size) resize.Size, error) {
	switch {
	case o.Reset && (o.Memory != "" || o.Cores != 0):
		return nil, errors.New("--reset requests the size of the pod's spec, and accepts no --memory or --cores")
	case !o.Reset && o.Memory == "" && o.Cores == 0:
		return nil, errors.New("name a size: --memory, --cores, or --reset for the size of the pod's spec")
	case o.Cores > 100:
		return nil, fmt.Errorf("--cores is %d; allowed: 1 to 100 percent", o.Cores)
	}
	var memory uint64
	if o.Memory != "" {
		var err error
		if memory, err = mib(o.Memory); err != nil {
			return nil, err
		}
	}
	if err := (resize.Size{MemoryMiB: memory}).Check(); err != nil {
		return nil, fmt.Errorf("--memory is %q: %w", o.Memory, err)
	}
	return func(size resize.Size) resize.Size {
		if o.Reset {
			return resize.Size{}
		}
		if memory != 0 {
			size.MemoryMiB = memory
		}
		if o.Cores != 0 {
			size.Cores = o.Cores
		}
		return size
	}, nil
}

// mib returns the value of --memory in MiB.
func mib(text string) (uint64, error) {
	allowed := fmt.Errorf("--memory is %q; allowed: MiB of each GPU, such as 8192, or a quantity of whole MiB, such as 8Gi", text)
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		if n == 0 {
			return 0, allowed
		}
		return n, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Value() <= 0 || q.Value()%request.MiB != 0 {
		return 0, allowed
	}
	return uint64(q.Value()) / request.MiB, nil
}

// write writes the request to the pod. write returns the pod as it was before, the container and its
// requested size.
func write(ctx context.Context, api API, o Options, change func(resize.Size) resize.Size) (*corev1.Pod, string, resize.Size, error) {
	for attempt := 1; ; attempt++ {
		pod, err := api.Pod(ctx, o.Namespace, o.Pod)
		if err != nil {
			return nil, "", resize.Size{}, err
		}
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			return nil, "", resize.Size{}, fmt.Errorf("pod %s/%s has ended (%s): only a pod with running or waiting containers can be resized", o.Namespace, o.Pod, pod.Status.Phase)
		}
		container, err := o.container(pod)
		if err != nil {
			return nil, "", resize.Size{}, err
		}
		sizes, err := requested(pod)
		if err != nil && !o.Reset { // a reset replaces an unreadable annotation
			return nil, "", resize.Size{}, err
		}
		wanted := change(sizes[container])
		if sizes[container] = wanted; wanted == (resize.Size{}) {
			delete(sizes, container)
		}
		text := ""
		if len(sizes) > 0 {
			if text, err = resize.Format(sizes); err != nil {
				return nil, "", resize.Size{}, err
			}
		}
		if text == pod.Annotations[resize.Annotation] {
			return pod, container, wanted, nil
		}
		err = api.Annotate(ctx, pod, resize.Annotation, text)
		if !apierrors.IsConflict(err) || attempt == conflicts {
			return pod, container, wanted, err
		}
	}
}

// requested returns the sizes that a pod's annotation requests. An annotation that cannot be read is an
// error, since it may be of a newer release.
func requested(pod *corev1.Pod) (map[string]resize.Size, error) {
	text, ok := pod.Annotations[resize.Annotation]
	if !ok {
		return map[string]resize.Size{}, nil
	}
	sizes, err := resize.Parse(text)
	if err != nil {
		err = fmt.Errorf("the pod's annotation %s cannot be read: %w; remove the annotation by kubectl annotate pod -n %s %s %s-, or use --reset",
			resize.Annotation, err, pod.Namespace, pod.Name, resize.Annotation)
	}
	if sizes == nil {
		sizes = map[string]resize.Size{}
	}
	return sizes, err
}

// container returns the name of the container to resize.
func (o Options) container(pod *corev1.Pod) (string, error) {
	var names, asking []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		names = append(names, c.Name)
		for name := range c.Resources.Limits {
			if strings.Contains(string(name), "/") && !slices.Contains(asking, c.Name) {
				asking = append(asking, c.Name)
			}
		}
	}
	switch {
	case o.Container != "" && !slices.Contains(names, o.Container):
		return "", fmt.Errorf("pod %s/%s has no container %q; it has: %s", o.Namespace, o.Pod, o.Container, strings.Join(names, ", "))
	case len(asking) == 0:
		return "", fmt.Errorf("no container of pod %s/%s requests a part of a GPU", o.Namespace, o.Pod)
	case o.Container != "" && !slices.Contains(asking, o.Container):
		return "", fmt.Errorf("container %q of pod %s/%s requests no part of a GPU; these containers request extended resources: %s",
			o.Container, o.Namespace, o.Pod, strings.Join(asking, ", "))
	case o.Container != "":
		return o.Container, nil
	case len(asking) == 1:
		return asking[0], nil
	}
	return "", fmt.Errorf("pod %s/%s has several containers with extended resources; choose with -c: %s", o.Namespace, o.Pod, strings.Join(asking, ", "))
}

// await waits until the node has answered the request.
func await(ctx context.Context, api API, o Options, before *corev1.Pod, container string, wanted resize.Size) (resize.Report, error) {
	ctx, stop := context.WithTimeout(ctx, o.Wait)
	defer stop()
	last := fmt.Errorf("node %s has not answered: run kubectl vgpu doctor %s", before.Spec.NodeName, before.Spec.NodeName)
	if before.Spec.NodeName == "" {
		last = errors.New("the pod has no node yet: its node will apply the request")
	}
	for {
		pod, err := api.Pod(ctx, o.Namespace, o.Pod)
		switch {
		case ctx.Err() != nil:
			return resize.Report{}, fmt.Errorf("%w after %v: %w", ErrPending, o.Wait, last)
		case err != nil:
			return resize.Report{}, err
		case pod.UID != before.UID:
			return resize.Report{}, errors.New("a pod with the same name replaced the pod")
		}
		report, reported := resize.Reports(pod)[container]
		switch {
		case report.Requested != wanted || !reported && wanted != (resize.Size{}):
		case report.Pending == "":
			return report, nil
		case report.Pending == resize.Infeasible:
			return resize.Report{}, fmt.Errorf("%w: %s", ErrInfeasible, show.OneLine(report.Message))
		default:
			last = fmt.Errorf("%s: %s; the node retries", strings.ToLower(report.Pending), show.OneLine(report.Message))
		}
		if !loop.Sleep(ctx, interval) {
			return resize.Report{}, fmt.Errorf("%w after %v: %w", ErrPending, o.Wait, last)
		}
	}
}

// describe returns text such as "8192 MiB and 50 % of the time of each of its GPUs".
func describe(size resize.Size) string {
	memory, time := fmt.Sprintf("%d MiB", size.MemoryMiB), fmt.Sprintf("%d %% of the time", size.Cores)
	switch {
	case size == (resize.Size{}):
		return "the sizes of its spec"
	case size.Cores == 0:
		return memory + " of each of its GPUs, and the time of its spec"
	case size.MemoryMiB == 0:
		return time + " of each of its GPUs, and the memory of its spec"
	}
	return memory + " and " + time + " of each of its GPUs"
}
