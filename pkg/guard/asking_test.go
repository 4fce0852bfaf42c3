package guard

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
)

// Whoever creates a pod may claim a static pod's hash in its annotations. The guard
// refuses the pod of that name, and not the static pod.
func TestAListedPodIsKnownByItsName(t *testing.T) {
	n := newNode(t)
	const hash = "0123456789abcdef0123456789abcdef"
	if err := WriteAsking(n.settings.StateDir, []Pod{{hash, "tenant", "forged"}, {"u", "ns", "pod-u"}}); err != nil {
		t.Fatal(err)
	}
	static := inPod(hash)
	static.Namespace, static.Name = "kube-system", "kube-apiserver-node-1"
	for range 2 {
		adjust, err := n.create(static, wants("void"))
		if err != nil || hides(adjust) {
			t.Errorf("the static pod: %v, %v", adjust, err)
		}
		if _, err := n.create(inPod("u"), wants("void")); err == nil {
			t.Error("a pod that asks was not refused")
		}
		// Both pods may ask, and share a UID.
	}
	both := []Pod{{hash, "kube-system", "kube-apiserver-node-1"}, {hash, "tenant", "forged"}}
	if err := WriteAsking(n.settings.StateDir, both); err != nil {
		t.Fatal(err)
	}
	if _, err := n.create(static, wants("void")); err == nil {
		t.Error("a static pod that asks was not refused")
	}
}

// previousAsking is the list as the previous release has it.
type previousAsking struct {
	Version int      `json:"version"`
	SHA256  string   `json:"sha256"`
	Pods    []string `json:"pods"`
}

func sumOf(lines ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n") + "\n"))
	return hex.EncodeToString(sum[:])
}

func TestListsOfTheOtherRelease(t *testing.T) {
	dir := t.TempDir()
	pods := []Pod{{"b", "ns", "two"}, {"a", "ns", "one"}, {UID: "c"}}
	if err := WriteAsking(dir, pods); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(layout.AskingPods(dir))
	if err != nil {
		t.Fatal(err)
	}
	var previous previousAsking
	if err := json.Unmarshal(content, &previous); err != nil {
		t.Fatal(err)
	}
	if want := (previousAsking{1, sumOf("a", "b", "c"), []string{"a", "b", "c"}}); cmp.Diff(want, previous) != "" {
		t.Errorf("the previous release's guard reads %+v", previous)
	}
	slices.SortFunc(pods, Pod.Compare)
	if got, err := ReadAsking(dir); err != nil || !slices.Equal(got, pods) {
		t.Errorf("read back: %v, %v", got, err)
	}

	content, err = json.Marshal(previousAsking{1, sumOf("a", "b"), []string{"a", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(layout.AskingPods(dir), content, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadAsking(dir)
	if err != nil || !slices.Equal(got, []Pod{{UID: "a"}, {UID: "b"}}) {
		t.Errorf("of the previous release's list: %v, %v", got, err)
	}
	if !got[0].is(Pod{"a", "ns", "any"}) || got[0].is(Pod{"b", "ns", "any"}) {
		t.Error("a pod without a name is not any of its UID")
	}
}

func TestADamagedListIsNotTrusted(t *testing.T) {
	good := newAsking([]Pod{{"a", "ns", "one"}, {"b", "ns", "two"}})
	for name, damage := range map[string]func(*asking){
		"another name": func(a *asking) { a.Names[0] = "ns/three" },
		"a name less":  func(a *asking) { a.Names = a.Names[:1]; a.NamesSHA256 = checksum(a.Names) },
		"no names":     func(a *asking) { a.Names = nil },
		"no checksum":  func(a *asking) { a.NamesSHA256 = "" },
		"another UID":  func(a *asking) { a.Pods[0] = "c" },
		"no version":   func(a *asking) { a.Version = 0 },
	} {
		dir, bad := t.TempDir(), good
		bad.Names, bad.Pods = slices.Clone(good.Names), slices.Clone(good.Pods)
		damage(&bad)
		content, err := json.Marshal(bad)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(layout.AskingPods(dir), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadAsking(dir); !errors.Is(err, ErrAsking) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
