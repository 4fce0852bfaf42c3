// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// container is a container that requests a number of GPUs, and MiB and percent of the time of all GPUs.
type container struct{ number, mib, cores int64 }

// podOf returns a pod with init containers and app containers.
func podOf(name string, inits, apps []container) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid", Name: name, Namespace: "team-a"}}
	list := func(prefix string, all []container) (containers []corev1.Container) {
		for i, c := range all {
			limits := corev1.ResourceList{}
			for name, n := range map[corev1.ResourceName]int64{"nri-vgpu.io/vgpu-number": c.number, "nri-vgpu.io/vgpu-memory": c.mib, "nri-vgpu.io/vgpu-cores": c.cores} {
				if n > 0 {
					limits[name] = *resource.NewQuantity(n, resource.DecimalSI)
				}
			}
			containers = append(containers, corev1.Container{Name: fmt.Sprint(prefix, i), Resources: corev1.ResourceRequirements{Limits: limits}})
		}
		return containers
	}
	p.Spec.InitContainers, p.Spec.Containers = list("init", inits), list("app", apps)
	return p
}

// TestHoldsNoMoreThanAQuotaCounts checks that a pod with totals holds no more memory and time than
// ResourceQuota counts of the pod's spec, or gets no GPU.
func TestHoldsNoMoreThanAQuotaCounts(t *testing.T) {
	const inexact = "a quota counts"
	every := func(numbers ...int64) (all []container) {
		for _, n := range numbers {
			all = append(all, container{n, 32768, 100})
		}
		return all
	}
	for name, tt := range map[string]struct {
		inits, apps []container
		gpus        []uint64 // free GiB
		amounts     string
		refused     string
	}{
		"no init container":               {apps: every(2, 1)},
		"one GPU for all containers":      {inits: every(1, 1), apps: every(1)},
		"the same GPUs for all":           {inits: every(4, 4), apps: every(4)},
		"a small init container":          {inits: []container{{1, 4096, 10}}, apps: every(1)},
		"two app containers":              {inits: []container{{1, 40960, 100}}, apps: []container{{1, 20480, 50}, {1, 20480, 50}}},
		"an init container with less":     {inits: []container{{1, 4096, 10}}, apps: []container{{2, 8192, 20}}},
		"other GPUs are too full":         {inits: []container{{1, 4096, 10}}, apps: every(1), gpus: []uint64{5, 80}},
		"more and more GPUs":              {inits: every(8, 7, 6, 5, 4, 3, 2), apps: every(1), refused: inexact},
		"an init container with two GPUs": {inits: []container{{2, 4096, 10}}, apps: every(1), refused: inexact},
		"time alone":                      {inits: []container{{1, 1024, 60}}, apps: []container{{2, 2048, 60}}, refused: inexact},
		"no GPU has room for both":        {inits: []container{{2, 81920, 10}}, apps: every(1), gpus: []uint64{20, 20}, refused: "no GPU has room"},
		"amounts of each GPU":             {inits: every(8, 7, 6), apps: every(1), amounts: config.AmountsPerGPU},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config.Default()
			cfg.Dialects.Native.Amounts = config.AmountsTotal
			if tt.amounts != "" {
				cfg.Dialects.Native.Amounts = tt.amounts
			}
			if tt.gpus == nil {
				tt.gpus = []uint64{80, 80, 80, 80, 80, 80, 80, 80}
			}
			p := podOf("p", tt.inits, tt.apps)
			asked, err := request.Read(p, cfg)
			if err != nil {
				t.Fatal(err)
			}
			l := New(gpus(tt.gpus...), cfg)
			before := l.Free()
			for _, c := range asked.Containers {
				if _, err = l.Place(asked, c.Name); err != nil {
					break
				}
			}
			if noRoom := (*NoRoomError)(nil); tt.refused != "" && (!errors.As(err, &noRoom) || !strings.Contains(err.Error(), tt.refused)) || tt.refused == "" && err != nil {
				t.Fatalf("refused by %v, want %q", err, tt.refused)
			}
			var memory, time int64
			for i, g := range l.Free() {
				memory += int64(before[i].FreeMemoryBytes-g.FreeMemoryBytes) >> 20
				time += int64(before[i].FreeComputePPM-g.FreeComputePPM) / 10_000
			}
			used := request.Used([]*corev1.Pod{p}, cfg.Dialects)
			if tt.refused != "" {
				used = nil
			}
			if exceeds := memory > used["nri-vgpu.io/vgpu-memory"] || time > used["nri-vgpu.io/vgpu-cores"]; exceeds && tt.amounts == "" {
				t.Errorf("the pod holds %d MiB and %d %%, and a quota counts %v", memory, time, used)
			}
		})
	}
}

// TestGPUsThatNoSearchChooses checks init containers with assigned GPUs, and in another dialect. The
// pod may then hold more than a quota counts.
func TestGPUsThatNoSearchChooses(t *testing.T) {
	cfg := config.Default()
	cfg.Dialects.Native.Amounts = config.AmountsTotal
	on := func(uuid string, share request.Share) request.Share {
		share.GPUs = []string{uuid}
		return share
	}
	for _, tt := range []struct {
		name, dialect string
		shares        []request.Share
		refused       bool
	}{
		{"chosen GPUs", request.DialectNative, []request.Share{mem(2), mem(2)}, true},
		{"a chosen and an assigned GPU", request.DialectNative, []request.Share{on("GPU-0", mem(2)), mem(2)}, true},
		{"assigned GPUs", request.DialectNative, []request.Share{on("GPU-0", mem(2)), on("GPU-1", mem(2))}, false},
		{"another dialect", request.DialectVolcano, []request.Share{mem(2), mem(2)}, false},
	} {
		init, main := initc("i", tt.shares...), app("a", mem(32))
		init.Dialect, main.Dialect = tt.dialect, tt.dialect
		p := pod("p", init, main)
		l := New(gpus(80, 80), cfg)
		_, err := l.Place(p, "i")
		if err == nil {
			_, err = l.Place(p, "a")
		}
		if (err != nil) != tt.refused {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
