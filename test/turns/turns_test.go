// SPDX-License-Identifier: Apache-2.0

package turns

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// offering returns a Node that offers a number of turns.
func offering(turns int64) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.Allocatable = corev1.ResourceList{request.FitTurn: *resource.NewQuantity(turns, resource.DecimalSI)}
	return node
}

// boundPod returns a pod of the node that takes a turn.
func boundPod(name string) *corev1.Pod {
	turn := corev1.ResourceList{request.FitTurn: resource.MustParse("1")}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid"}}
	pod.Spec.NodeName = "n"
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: turn, Limits: turn}}}
	return pod
}

// TestDelays checks the delays of a binding and of an end, while a pod without turns and an older pod run.
func TestDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		older, without := boundPod("older"), boundPod("without")
		older.UID, without.UID = "older", "without"
		without.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
		client := fake.NewClientset(offering(2), older)
		r, err := Record(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		pods, nodes := client.CoreV1().Pods("ns"), client.CoreV1().Nodes()
		step := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		_, err = nodes.Update(t.Context(), offering(2), metav1.UpdateOptions{})
		step(err)
		_, err = pods.Create(t.Context(), without, metav1.CreateOptions{})
		step(err)
		_, err = pods.Create(t.Context(), boundPod("p"), metav1.CreateOptions{})
		step(err)
		time.Sleep(100 * time.Millisecond)
		_, err = nodes.Update(t.Context(), offering(2), metav1.UpdateOptions{}) // changes something else
		step(err)
		time.Sleep(50 * time.Millisecond)
		_, err = nodes.Update(t.Context(), offering(3), metav1.UpdateOptions{})
		step(err)
		ended := boundPod("p")
		ended.Status.Phase = corev1.PodSucceeded
		_, err = pods.Update(t.Context(), ended, metav1.UpdateOptions{})
		step(err)
		time.Sleep(70 * time.Millisecond)
		step(pods.Delete(t.Context(), "p", metav1.DeleteOptions{}))
		_, err = nodes.Update(t.Context(), offering(2), metav1.UpdateOptions{})
		step(err)
		for change, want := range map[Change]time.Duration{Binding: 150 * time.Millisecond, End: 70 * time.Millisecond} {
			if err := r.Await(t.Context(), "p", change, time.Second); err != nil {
				t.Fatal(err)
			}
			if all := r.Delays(change); len(all) != 1 || all[0] != (Delay{"n", "p", change, want}) {
				t.Errorf("delays of a %s: %+v", change, all)
			}
		}
		if err := r.Await(t.Context(), "older", End, time.Second); err == nil {
			t.Error("a pod that runs has ended")
		}
	})
}
