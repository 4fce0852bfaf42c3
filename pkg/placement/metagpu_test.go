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
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// shared returns a configuration that offers two GPUs of 10 shares, together under one name and
// each under another name.
func shared(spread bool) config.Config {
	cfg := config.Default()
	cfg.Dialects.MetaGPU.AllowSpread = spread
	cfg.Dialects.MetaGPU.DeviceSharing = []config.DeviceSharing{
		{ResourceName: "cnvrg.io/metagpu", SharesPerGPU: 10, UUIDs: []string{config.AllGPUs}},
		{ResourceName: "cnvrg.io/first", SharesPerGPU: 10, UUIDs: []string{"GPU-0"}},
		{ResourceName: "cnvrg.io/second", SharesPerGPU: 10, UUIDs: []string{"GPU-1"}},
		{ResourceName: "cnvrg.io/fine", SharesPerGPU: 10, AutoReshare: true, UUIDs: []string{config.AllGPUs}},
	}
	return cfg
}

// tenths returns the placement of a pod's request "name=shares", such as "0:10 1:2", in tenths of a
// GPU's memory. tenths checks that the part of the GPU's time is equal.
func tenths(t *testing.T, l *Ledger, cfg config.Config, uid, ask string) string {
	t.Helper()
	name, shares, _ := strings.Cut(ask, "=")
	spec := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "a", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceName("cnvrg.io/" + name): resource.MustParse(shares)},
		},
	}}}}
	p, err := request.FromPod(spec, cfg.Dialects)
	if err != nil {
		t.Fatal(err)
	}
	a, err := l.Place(p, "a")
	var none *NoRoomError
	if errors.As(err, &none) {
		return "refused"
	}
	if err != nil {
		t.Fatal(err)
	}
	var on []string
	for _, d := range a.Devices {
		tenth := float64(d.MemoryBytes) / (16 * gib) * 10
		if time := float64(d.ComputePPM) / request.Whole * 10; time-tenth > 1e-6 || tenth-time > 1e-6 {
			t.Errorf("%s: %v tenths of the memory, %v of the time", ask, tenth, time)
		}
		on = append(on, fmt.Sprintf("%s:%.3g", strings.TrimPrefix(d.UUID, "GPU-"), tenth))
	}
	return strings.Join(on, " ")
}

// TestMetaGPUShares checks the placements that MetaGPU's users expect on two
// GPUs of 10 shares.
func TestMetaGPUShares(t *testing.T) {
	tests := []struct {
		name   string
		spread bool
		ask    string
		want   string
	}{
		{"12: all of the first and 2 of the second", false, "metagpu=12", "0:10 1:2"},
		{"20: both", false, "metagpu=20", "0:10 1:10"},
		{"12 with one of each taken: no whole GPU", false, "first=1 second=1 metagpu=12", "0:1, 1:1, refused"},
		{"12 with 1 taken: the other whole and 2 beside", false, "metagpu=1 metagpu=12", "0:1, 1:10 0:2"},
		{"5 after 5: the same GPU", false, "metagpu=5 metagpu=5", "0:5, 0:5"},
		{"5 after 5 and 5: the other", false, "metagpu=5 metagpu=5 metagpu=5", "0:5, 0:5, 1:5"},
		{"7 with 5 taken: the other GPU", false, "metagpu=5 metagpu=7", "0:5, 1:7"},
		{"8 with 5 taken: the other GPU", false, "metagpu=5 metagpu=8", "0:5, 1:8"},
		{"8 with 5 taken, where spreading is allowed: the other GPU, whole", true, "metagpu=5 metagpu=8", "0:5, 1:8"},
		{"8 with both half taken: refused", false, "first=5 second=5 metagpu=8", "0:5, 1:5, refused"},
		{"8 with both half taken, where spreading is allowed: 5 and 3", true, "first=5 second=5 metagpu=8", "0:5, 1:5, 0:5 1:3"},
		{"and then 2 are left", true, "first=5 second=5 metagpu=8 metagpu=3 metagpu=2", "0:5, 1:5, 0:5 1:3, refused, 1:2"},
		{"a name's own GPU is full, and the other is not", true, "first=10 first=1 second=1", "0:10, refused, 1:1"},
		{"15 of 100, where GPUs are shared anew", false, "fine=15 fine=85 fine=1", "0:1.5, 0:8.5, 1:0.1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := shared(tt.spread)
			l := New(gpus(16, 16), cfg)
			var got []string
			for i, ask := range strings.Fields(tt.ask) {
				got = append(got, tenths(t, l, cfg, fmt.Sprint(i), ask))
			}
			if all := strings.Join(got, ", "); all != tt.want {
				t.Errorf("got %q, want %q", all, tt.want)
			}
		})
	}
}
