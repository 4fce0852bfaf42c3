// SPDX-License-Identifier: Apache-2.0

package resize

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func podWith(annotation, text string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotation: text}}}
}

// asked is the request of a container "main" for a share of 4 GiB and 20 %, and of a container "idle" for
// nothing.
func asked() request.Pod {
	return request.Pod{Containers: []request.Container{
		{Name: "idle", Kind: request.App},
		{Name: "main", Kind: request.App, Shares: []request.Share{{Memory: request.Memory{Bytes: 4096 * request.MiB}, ComputePPM: 200_000, Slots: 1}}},
	}}
}

func TestWanted(t *testing.T) {
	documented.Bound(t, "requested sizes of running containers", documented.Bytes(mostBytes)+" for an annotation")
	for text, want := range map[string]map[string]Size{
		`{}`:                       {},
		`{"main":{"memory":8192}}`: {"main": {MemoryMiB: 8192}},
		`{"main": {"memory": 8192, "cores": 50}}`: {"main": {MemoryMiB: 8192, Cores: 50}},
		`{"main":{}}`: {"main": {}},
		`{"main":{"memory":16777216,"cores":100}}`: {"main": {MemoryMiB: 16 << 20, Cores: 100}},
	} {
		got, err := Wanted(podWith(Annotation, text), asked())
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", text, err, diff)
		}
	}
	if got, err := Wanted(&corev1.Pod{}, asked()); got != nil || err != nil {
		t.Errorf("without an annotation: %v, %v", got, err)
	}
	for text, why := range map[string]string{
		``:                               "allowed: an object",
		`[]`:                             "allowed: an object",
		`{"main":{"memory":-1}}`:         "allowed: an object",
		`{"main":{"memory":1.5}}`:        "allowed: an object",
		`{"main":{"memory":"8Gi"}}`:      "allowed: an object",
		`{"main":{"slots":1}}`:           "unknown field",
		`{"main":{"cores":101}}`:         "1 to 100",
		`{"main":{"memory":16777217}}`:   "1 to 16777216 MiB",
		`{"idle":{"memory":1}}`:          `no container "idle"`,
		`{"gone":{"memory":1}}`:          `no container "gone"`,
		`{} {}`:                          "nothing after it",
		strings.Repeat(" ", mostBytes+1): "65537 bytes",
	} {
		if got, err := Wanted(podWith(Annotation, text), asked()); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%.40s: got %v, %v, want %q", text, got, err, why)
		}
	}
}

func TestApply(t *testing.T) {
	divided := request.Share{Memory: request.Memory{PPM: 500_000}, Limit: request.Memory{PPM: 600_000}, ComputePPM: 500_000, MaximumPPM: 800_000, SplitPPM: 100_000}
	for _, tt := range []struct {
		name string
		size Size
		want request.Share
	}{
		{"nothing", Size{}, request.Share{Memory: divided.Memory, Limit: divided.Limit, ComputePPM: 500_000, MaximumPPM: 800_000}},
		{"memory", Size{MemoryMiB: 2}, request.Share{Memory: request.Memory{Bytes: 2 << 20}, Limit: divided.Limit, ComputePPM: 500_000, MaximumPPM: 800_000}},
		{"time below the maximum", Size{Cores: 79}, request.Share{Memory: divided.Memory, Limit: divided.Limit, ComputePPM: 790_000, MaximumPPM: 800_000}},
		{"time as the maximum", Size{Cores: 80}, request.Share{Memory: divided.Memory, Limit: divided.Limit, ComputePPM: 800_000}},
	} {
		shares := []request.Share{divided}
		if diff := cmp.Diff([]request.Share{tt.want}, tt.size.Apply(shares)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if diff := cmp.Diff(divided, shares[0]); diff != "" {
			t.Errorf("%s: the given shares have changed: %s", tt.name, diff)
		}
	}
}

func TestInForce(t *testing.T) {
	for text, want := range map[string]Size{
		`{"main":{"memory":8192,"cores":50}}`:                            {MemoryMiB: 8192, Cores: 50},
		`{"main":{"memory":8192,"pending":"Deferred","message":"text"}}`: {MemoryMiB: 8192, Cores: 20},
		`{"main":{"pending":"Infeasible"}}`:                              {MemoryMiB: 4096, Cores: 20},
		`{"main":{"cores":101}}`:                                         {MemoryMiB: 4096, Cores: 20},
		`{"main":{"memory":99999999999}}`:                                {MemoryMiB: 4096, Cores: 20},
		`{"idle":{"memory":1}}`:                                          {MemoryMiB: 4096, Cores: 20},
		`{"main":`:                                                       {MemoryMiB: 4096, Cores: 20},
	} {
		before := asked()
		got := InForce(before, podWith(ReportAnnotation, text))
		share := got.Containers[1].Shares[0]
		if share.Memory.Bytes != want.MemoryMiB*request.MiB || share.ComputePPM != want.Cores*10_000 || len(got.Containers[0].Shares) != 0 {
			t.Errorf("%s: got %+v, want %+v", text, got, want)
		}
		if diff := cmp.Diff(asked(), before); diff != "" {
			t.Errorf("%s: the given request has changed: %s", text, diff)
		}
	}
}

func TestReports(t *testing.T) {
	reports := map[string]Report{"main": {Size: Size{MemoryMiB: 8192}, Requested: Size{Cores: 50}, Pending: Deferred, Message: "no room"}, "other": {Size: Size{Cores: 5}}}
	text, err := Format(reports)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"main":{"memory":8192,"requested":{"cores":50},"pending":"Deferred","message":"no room"},"other":{"cores":5}}`; text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	if diff := cmp.Diff(reports, Reports(podWith(ReportAnnotation, text))); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	if got := Reports(podWith(ReportAnnotation, `{"main":{}}`+strings.Repeat(" ", mostBytes))); got != nil {
		t.Errorf("a long annotation is %+v", got)
	}
}

func FuzzWanted(f *testing.F) {
	f.Add(`{"main":{"memory":8192,"cores":50}}`)
	f.Add(`{"main":{}} `)
	f.Fuzz(func(t *testing.T, text string) {
		sizes, err := Wanted(podWith(Annotation, text), asked())
		if err != nil {
			return
		}
		again, err := Format(sizes)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Wanted(podWith(Annotation, again), asked())
		if diff := cmp.Diff(sizes, got); diff != "" || err != nil {
			t.Errorf("%q becomes %q, %v: %s", text, again, err, diff)
		}
	})
}
