// SPDX-License-Identifier: Apache-2.0

package request

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// LimitAnnotation is the prefix of a pod annotation; a resource name follows it. A container that
// requests the resource may use as much memory as the annotated number of units is worth, which may
// exceed the request. A user can write the annotation, so the node's configuration bounds the
// number.
const LimitAnnotation = "gpu-mem-limit."

// Reads reports whether Read reads an annotation of a pod.
func Reads(annotation string) bool {
	return annotation == PolicyAnnotation || strings.HasPrefix(annotation, MaximumAnnotation) || strings.HasPrefix(annotation, LimitAnnotation)
}

// Read returns the requests of all containers of a pod, including the limits and maxima that the
// pod's annotations set.
func Read(pod *corev1.Pod, cfg config.Config) (Pod, error) {
	asked, err := FromPod(pod, cfg.Dialects)
	if err != nil {
		return Pod{}, err
	}
	err = errors.Join(setForeign(pod, asked, cfg.Node), setMaxima(pod, asked, cfg), eachAnnotated(pod, asked, LimitAnnotation, cfg, raiseMemory))
	if err != nil {
		return Pod{}, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return asked, nil
}

// asker is a container that requests a resource.
type asker struct {
	*Container
	dialect dialect
	amounts amounts
}

// instead returns the container's shares if the container requested n units of the resource.
// instead returns nil if the result is invalid or has another number of GPUs.
func (a asker) instead(name string, n int64) []Share {
	instead := maps.Clone(a.amounts)
	instead[name] = n
	shares, err := a.dialect.shares(instead)
	if err != nil || len(shares) != len(a.Shares) {
		return nil
	}
	return shares
}

// eachAnnotated calls set for each pod annotation with a prefix. The arguments of set are the
// containers that request the resource named after the prefix, and the annotation's number. The
// error of set describes the allowed values.
func eachAnnotated(pod *corev1.Pod, asked Pod, prefix string, cfg config.Config,
	set func(asking []asker, name string, n int64, cfg config.Config) error,
) error {
	if !slices.ContainsFunc(asked.Containers, func(c Container) bool { return len(c.Shares) > 0 }) {
		return nil
	}
	var keys []string
	for key := range pod.Annotations { // a pod may have very many annotations
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	if most := len(Names(cfg.Dialects)); len(keys) > most {
		return fmt.Errorf("it has %d annotations %s…; allowed: %d, one for each resource", len(keys), prefix, most)
	}
	slices.Sort(keys)
	var errs []error
	for _, key := range keys {
		name := strings.TrimPrefix(key, prefix)
		value := pod.Annotations[key]
		n, err := strconv.ParseInt(value, 10, 64)
		asking := askers(pod, asked, name, cfg)
		switch {
		case err != nil || n < 0 || n > maxMiB:
			err = fmt.Errorf("a whole number, up to %d", maxMiB)
		case len(asking) == 0:
			err = fmt.Errorf("the name of a resource that a container requests; none requests %s", name)
		default:
			err = set(asking, name, n, cfg)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("annotation %s is %q; allowed: %w", key, value, err))
		}
	}
	return errors.Join(errs...)
}

// askers returns the containers that request a resource.
func askers(pod *corev1.Pod, asked Pod, name string, cfg config.Config) []asker {
	var asking []asker
	dialects := enabled(cfg.Dialects, cfg.Node)
	for i, limits := range limitsOf(pod) {
		c := &asked.Containers[i]
		k := slices.IndexFunc(dialects, func(d dialect) bool { return d.name() == c.Dialect })
		if k < 0 {
			continue
		}
		a, err := amountsIn(limits, dialects[k].resources())
		if err == nil && a[name] != 0 {
			asking = append(asking, asker{c, dialects[k], a})
		}
	}
	return asking
}

// raiseMemory sets the memory limits of the containers that request the named resource.
func raiseMemory(asking []asker, name string, n int64, cfg config.Config) error {
	percent := int64(cfg.Memory.OvercommitPercent)
	if percent == 0 {
		return errors.New("no such annotation, as this node lets no container use more than it requests (memory.overcommit_percent)")
	}
	for _, a := range asking {
		least := a.amounts[name]
		if most := least * (100 + percent) / 100; n < least || n > most {
			return fmt.Errorf("%d to %d for container %q, which requests %d (memory.overcommit_percent is %d)",
				least, most, a.Name, least, percent)
		}
		raised := a.instead(name, n)
		if raised == nil {
			return fmt.Errorf("no more than the same %d GPUs have", len(a.Shares))
		}
		changed := n == least
		for i := range a.Shares {
			changed = changed || raised[i].Memory != a.Shares[i].Memory
		}
		if !changed {
			return errors.New("the name of a resource of memory")
		}
		for i := range a.Shares {
			a.Shares[i].Limit = raised[i].Memory
		}
	}
	return nil
}

// limitsOf returns the resource limits of a pod's containers, in FromPod's order.
func limitsOf(pod *corev1.Pod) []corev1.ResourceList {
	var all []corev1.ResourceList
	for i := range pod.Spec.InitContainers {
		all = append(all, pod.Spec.InitContainers[i].Resources.Limits)
	}
	for i := range pod.Spec.Containers {
		all = append(all, pod.Spec.Containers[i].Resources.Limits)
	}
	return all
}
