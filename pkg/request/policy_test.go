package request

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

func TestShares(t *testing.T) {
	for _, test := range []struct {
		node   string
		choice bool
		chosen string
		want   bool
		err    string
	}{
		{config.ComputeCap, false, "", false, ""},
		{config.ComputeShare, false, "", true, ""},
		{config.ComputeCap, true, "share", true, ""},
		{config.ComputeShare, true, "cap", false, ""},
		{config.ComputeShare, false, "share", true, ""},
		{config.ComputeCap, false, "share", false, `annotation nri-vgpu.io/compute-policy is "share"; allowed: cap, as this node leaves pods no choice`},
		{config.ComputeShare, false, "cap", false, `is "cap"; allowed: share, as`},
		{config.ComputeCap, true, "Share", false, `is "Share"; allowed: cap, share`},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Annotations: map[string]string{}}}
		if test.chosen != "" {
			pod.Annotations[PolicyAnnotation] = test.chosen
		}
		got, err := Shares(pod, config.Compute{Policy: test.node, PodsMayChoose: test.choice})
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) || got != test.want {
			t.Errorf("%+v: got %v, %v", test, got, err)
		}
	}
}
