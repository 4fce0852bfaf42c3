// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
)

// FitPolicy is the name of the chart's policy for the scheduling mode fit.
const FitPolicy = "nri-vgpu-fit"

// admission is the group of the API with policies.
const admission = "/apis/admissionregistration.k8s.io/v1"

// Version describes what the cluster's version supports.
type Version struct {
	// Release is the version of the API server, such as "v1.37.1".
	Release string
	// Policies reports whether the API server serves MutatingAdmissionPolicies.
	Policies bool
	// FitMissing reports whether FitPolicy is missing. FitMissing is false for users who may not read
	// policies.
	FitMissing bool
}

// Version returns what the cluster's version supports.
func (f *Fleet) Version(ctx context.Context) (Version, error) {
	var release version.Info
	if err := f.read(ctx, "/version", &release); err != nil {
		return Version{}, fmt.Errorf("read the version of the API server: %w", err)
	}
	v := Version{Release: release.GitVersion}
	var served metav1.APIResourceList
	if err := f.read(ctx, admission, &served); err != nil {
		return v, fmt.Errorf("list the served resources of %s: %w", admission, err)
	}
	for i := range served.APIResources {
		v.Policies = v.Policies || served.APIResources[i].Name == "mutatingadmissionpolicies"
	}
	if v.Policies {
		err := f.read(ctx, admission+"/mutatingadmissionpolicies/"+FitPolicy, nil)
		v.FitMissing = apierrors.IsNotFound(err)
	}
	return v, nil
}

// read reads an object of the API server by its path. read ignores the object if into is nil.
func (f *Fleet) read(ctx context.Context, path string, into any) error {
	body, err := f.api.Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(body, into)
}
