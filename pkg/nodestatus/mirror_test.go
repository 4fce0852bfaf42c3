// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func atVersion(rv string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: rv}}
}

func TestMirrorKeepsTheNewest(t *testing.T) {
	tests := []struct {
		name string
		do   func(m *mirror) error
		want string // the mirror's resource version; "" is no Node
	}{
		{"nothing yet", func(*mirror) error { return nil }, ""},
		{"listed", func(m *mirror) error { return m.Replace([]any{atVersion("5")}, "5") }, "5"},
		{"watch lags behind the answer to a patch", func(m *mirror) error {
			m.observe(atVersion("10"))
			return m.Update(atVersion("9"))
		}, "10"},
		{"compared as numbers", func(m *mirror) error {
			m.observe(atVersion("9"))
			return m.Update(atVersion("10"))
		}, "10"},
		{"deleted", func(m *mirror) error {
			m.observe(atVersion("5"))
			return m.Delete(atVersion("6"))
		}, ""},
		{"successor known before the deletion", func(m *mirror) error {
			m.observe(atVersion("9"))
			return m.Delete(atVersion("6"))
		}, "9"},
		{"a list is believed though older", func(m *mirror) error {
			m.observe(atVersion("10"))
			return m.Replace([]any{atVersion("3")}, "3")
		}, "3"},
		{"an empty list", func(m *mirror) error {
			m.observe(atVersion("10"))
			return m.Replace(nil, "11")
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMirror()
			if err := tt.do(m); err != nil {
				t.Fatal(err)
			}
			got := ""
			if node, _ := m.get(); node != nil {
				got = node.ResourceVersion
			}
			if got != tt.want {
				t.Errorf("holds %q, want %q", got, tt.want)
			}
		})
	}
}

func TestMirrorTakesAStateOfTheSameVersion(t *testing.T) {
	m, again := newMirror(), atVersion("5")
	m.observe(atVersion("5"))
	m.observe(again)
	if node, _ := m.get(); node != again {
		t.Error("it keeps the state from before")
	}
	odd := atVersion("not a number")
	if m.observe(odd); m.node != odd {
		t.Error("a version that cannot be compared is no news")
	}
}

func TestMirrorNotifiesWithoutBlocking(t *testing.T) {
	m := newMirror()
	for _, rv := range []string{"1", "2", "3"} {
		m.observe(atVersion(rv))
	}
	select {
	case <-m.changed:
	default:
		t.Error("no news after changes")
	}
}
