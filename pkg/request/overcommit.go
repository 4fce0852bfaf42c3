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

// LimitAnnotation is, followed by the name of a resource, on pods whose
// containers may use more memory than they ask for, as much as so many units of
// the resource would give them. A user can write it: it counts where the node's
// configuration allows it, and as far.
const LimitAnnotation = "gpu-mem-limit."

// Read is what every container of a pod asks for, and what the pod says of its
// limits.
func Read(pod *corev1.Pod, cfg config.Config) (Pod, error) {
	asked, err := FromPod(pod, cfg.Dialects)
	if err != nil {
		return Pod{}, err
	}
	if asked.Share, err = Shares(pod, cfg.Compute); err != nil {
		return Pod{}, err
	}
	if err := raiseLimits(pod, asked, cfg); err != nil {
		return Pod{}, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return asked, nil
}

// raiseLimits sets the limits of the shares as the pod's annotations say.
func raiseLimits(pod *corev1.Pod, asked Pod, cfg config.Config) error {
	if !slices.ContainsFunc(asked.Containers, func(c Container) bool { return len(c.Shares) > 0 }) {
		return nil
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		name, ours := strings.CutPrefix(key, LimitAnnotation)
		if !ours {
			continue
		}
		if err := raiseLimit(pod, asked, name, pod.Annotations[key], cfg); err != nil {
			errs = append(errs, fmt.Errorf("annotation %s is %q; allowed: %w", key, pod.Annotations[key], err))
		}
	}
	return errors.Join(errs...)
}

// raiseLimit sets the limits of the containers that ask for the named resource.
// Its error says what is allowed.
func raiseLimit(pod *corev1.Pod, asked Pod, name, value string, cfg config.Config) error {
	percent := int64(cfg.Memory.OvercommitPercent)
	if percent == 0 {
		return errors.New("no such annotation, as this node lets no container use more than it asks for (memory.overcommit_percent)")
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n > maxMiB {
		return fmt.Errorf("a whole number, up to %d", maxMiB)
	}
	found := false
	dialects := enabled(cfg.Dialects, cfg.Node)
	for i, limits := range limitsOf(pod) {
		c := &asked.Containers[i]
		k := slices.IndexFunc(dialects, func(d dialect) bool { return d.name() == c.Dialect })
		if k < 0 {
			continue
		}
		a, err := amountsIn(limits, dialects[k])
		if err != nil || a[name] == 0 {
			continue
		}
		found = true
		if most := a[name] * (100 + percent) / 100; n < a[name] || n > most {
			return fmt.Errorf("%d to %d for container %q, which asks for %d (memory.overcommit_percent is %d)",
				a[name], most, c.Name, a[name], percent)
		}
		if err := c.raise(dialects[k], a, name, n); err != nil {
			return err
		}
	}
	if !found {
		return errors.New("the name of a resource that a container asks for")
	}
	return nil
}

// raise sets the container's limits to what n units would be.
func (c *Container) raise(d dialect, asked amounts, name string, n int64) error {
	instead := maps.Clone(asked)
	instead[name] = n
	raised, err := d.shares(instead)
	if err != nil || len(raised) != len(c.Shares) {
		return fmt.Errorf("no more than the same %d GPUs have", len(c.Shares))
	}
	changed := n == asked[name]
	for i := range c.Shares {
		changed = changed || raised[i].Memory != c.Shares[i].Memory
	}
	if !changed {
		return errors.New("the name of a resource of memory")
	}
	for i := range c.Shares {
		c.Shares[i].Limit = raised[i].Memory
	}
	return nil
}

// limitsOf are the resources of a pod's containers, in FromPod's order.
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
