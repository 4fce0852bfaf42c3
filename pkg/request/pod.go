// SPDX-License-Identifier: Apache-2.0

package request

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// MostAsking bounds the containers of a pod that may request a part of a GPU. Schedulers count only
// the largest init container, so no quota bounds the number of init containers. A pod's cost for
// the node grows with the number of its containers.
const MostAsking = 64

// FromPod parses the requests of all containers of a pod. A request is invalid if it has two
// dialects in one container, a fraction of a unit or an amount out of range. The error names the
// container, the resource and the allowed values. A container with an invalid request must not
// start. FromPod also returns an error if more than MostAsking containers request a part of a GPU.
// A container whose amounts are all zero requests nothing.
func FromPod(pod *corev1.Pod, cfg config.Dialects) (Pod, error) {
	r := reader{dialects: enabled(cfg, config.Node{})}
	for _, d := range r.dialects {
		r.words = append(r.words, d.resources())
	}
	for i := range pod.Spec.InitContainers {
		c, kind := &pod.Spec.InitContainers[i], Init
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			kind = Sidecar
		}
		r.container(c.Name, kind, c.Resources)
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		r.container(c.Name, App, c.Resources)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		// Ephemeral containers get no GPU: the API server rejects resources on ephemeral
		// containers.
		r.container(c.Name, Ephemeral, corev1.ResourceRequirements{})
	}
	err := errors.Join(r.errs...)
	if r.asking > MostAsking { // one error replaces the errors of many containers
		err = fmt.Errorf("more than %d of its containers request a part of a GPU; allowed: %d", MostAsking, MostAsking)
	}
	if err != nil {
		return Pod{}, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return Pod{
		UID:        string(pod.UID),
		Version:    pod.ResourceVersion,
		Namespace:  pod.Namespace,
		Name:       pod.Name,
		Containers: r.containers,
	}, nil
}

// Amounts returns the amounts of every enabled dialect's resources in a container's spec, for
// display. FromPod interprets the amounts.
func Amounts(pod *corev1.Pod, container string, cfg config.Dialects) map[string]int64 {
	all := map[string]int64{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			if c.Name != container {
				continue
			}
			for _, d := range enabled(cfg, config.Node{}) {
				for _, name := range d.resources() {
					if n := limitOf(c.Resources, corev1.ResourceName(name)); n > 0 {
						all[name] = n
					}
				}
			}
		}
	}
	return all
}

// reader collects the containers of a pod and the errors in their requests.
type reader struct {
	dialects   []dialect
	words      [][]string // of each dialect
	containers []Container
	asking     int // containers that request a part of a GPU
	errs       []error
}

func (r *reader) container(name string, kind Kind, res corev1.ResourceRequirements) {
	c := Container{Name: name, Kind: kind}
	if r.asking > MostAsking { // FromPod refuses the pod anyway
		return
	}
	spoken, asked, err := r.dialectOf(res.Limits)
	if err == nil && spoken != nil {
		if c.Shares, err = spoken.shares(asked); len(c.Shares) > 0 {
			c.Dialect = spoken.name()
		}
	}
	if err != nil || len(c.Shares) > 0 {
		r.asking++
	}
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("container %q: %w", name, err))
	}
	r.containers = append(r.containers, c)
}

// dialectOf returns the dialect of a container's limits and the amounts in the dialect, or nil if
// the container requests nothing. The API server enforces equal requests and limits of extended
// resources.
func (r *reader) dialectOf(limits corev1.ResourceList) (dialect, amounts, error) {
	var spoken dialect
	var asked amounts
	for i, d := range r.dialects {
		a, err := amountsIn(limits, r.words[i])
		if err != nil {
			return nil, nil, err
		}
		if a.empty() {
			continue
		}
		if spoken != nil {
			return nil, nil, fmt.Errorf("requests GPUs in two dialects, %s (%s) and %s (%s); allowed: one per container",
				spoken.name(), asked.words(spoken), d.name(), a.words(d))
		}
		spoken, asked = d, a
	}
	return spoken, asked, nil
}

func amountsIn(limits corev1.ResourceList, names []string) (amounts, error) {
	if len(limits) == 0 {
		return nil, nil
	}
	var a amounts
	for _, name := range names {
		q, named := limits[corev1.ResourceName(name)]
		if !named {
			continue
		}
		if a == nil {
			a = make(amounts)
		}
		n, err := units(q)
		if err != nil {
			return nil, fmt.Errorf("%s is %s; allowed: %w", name, q.String(), err)
		}
		a[name] = n
	}
	return a, nil
}

// units converts a quantity to a count. The API server validates the quantities of the pods that it
// admits; units also validates the quantities of other pods.
func units(q resource.Quantity) (int64, error) {
	n, exact := q.AsInt64()
	if !exact || n < 0 {
		return 0, errors.New("a whole number, 0 or more, of at most 63 bits")
	}
	return n, nil
}

func (a amounts) empty() bool {
	for _, n := range a {
		if n != 0 {
			return false
		}
	}
	return true
}

// words returns the named resources, in the dialect's order.
func (a amounts) words(d dialect) string {
	var named []string
	for _, name := range d.resources() {
		if _, ok := a[name]; ok {
			named = append(named, name)
		}
	}
	return strings.Join(named, ", ")
}
